"""Decides the class of each image from everything that tells it, and finds contradictions.

A wrong label does no visible harm, so wherever two things tell the class they must agree.
"""

from collections.abc import Sequence

from accelssl.errors import UserError
from accelssl.shards.sources.ilsvrc2012 import imagenet_val_wnids
from accelssl.shards.sources.image_name import ImageName, is_wnid


class Evidence:
    """Judges images one by one and remembers those that were told in two ways.

    In this order: the devkit, the class appended to the name, the class folder, the train name, and
    the list of validation labels that comes with the package. A class folder that is no wnid is
    simply the class: nothing can contradict it.
    """

    def __init__(self, devkit_val_wnids: Sequence[str] | None) -> None:
        self._devkit = devkit_val_wnids
        self._disagreements = 0
        self._first: tuple[str, str] | None = None
        self.beyond_devkit = 0
        """How many validation images have numbers that the devkit does not reach."""
        self.highest_beyond = 0

    def class_of(
        self, place: str, folder: str | None, file_name: str, name: ImageName
    ) -> str | None:
        """The class of an image, or None if nothing tells it.

        `folder` is the name of its class folder (None without), `place` that folder for messages.
        """
        _, train_wnid, val_number, appended_wnid = name
        if val_number is None and train_wnid in (None, folder) and appended_wnid is None:
            return folder  # nearly all images: spares 1.28M of them the rest
        claims: dict[str, str] = {}
        if val_number is not None and self._devkit is not None:
            _claim(claims, "the devkit", _at(self._devkit, val_number))
            if val_number > len(self._devkit):
                self.beyond_devkit += 1
                self.highest_beyond = max(self.highest_beyond, val_number)
        _claim(claims, "its name", appended_wnid)
        if folder is not None and is_wnid(folder):
            _claim(claims, "its folder", folder)
        _claim(claims, "the beginning of its name", train_wnid)
        if val_number is not None:
            _claim(claims, "ImageNet's validation list", _at(imagenet_val_wnids(), val_number))
        if len(set(claims.values())) > 1:
            self._note_disagreement(f"{place}/{file_name}", claims)
        if folder is not None and not is_wnid(folder):
            return folder
        return next(iter(claims.values()), None)

    def check(self) -> None:
        """Raises UserError if anything was told in two ways."""
        if self._first is not None:
            path, claims = self._first
            raise UserError(
                f"The class of {self._disagreements} images is told in two ways that disagree, "
                f"first of {path}: {claims}.",
                "Find out which is right, and correct or remove the other.",
            )

    def _note_disagreement(self, path: str, claims: dict[str, str]) -> None:
        self._disagreements += 1
        told = (path, ", ".join(f"{wnid} by {source}" for source, wnid in claims.items()))
        # The first by name, as the order that a file system gives differs between copies.
        self._first = told if self._first is None else min(self._first, told)


def _claim(claims: dict[str, str], source: str, wnid: str | None) -> None:
    if wnid is not None:
        claims[source] = wnid


def _at(wnids: Sequence[str], number: int) -> str | None:
    return wnids[number - 1] if 1 <= number <= len(wnids) else None
