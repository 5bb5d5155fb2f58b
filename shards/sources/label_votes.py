"""The class of each image by the votes of devkit, names, folders and ImageNet's own list.

A wrong label does no visible harm, so all votes for an image must agree.
"""

from collections.abc import Sequence

from accelssl.errors import UserError
from accelssl.shards.sources.ilsvrc2012 import imagenet_val_wnids
from accelssl.shards.sources.image_name import ImageName, is_wnid
from accelssl.text import plural


class LabelVotes:
    """The votes on the classes of images, with the images whose votes disagree.

    The voters, the first one decides: the devkit, the class appended to the name, the class folder,
    the train name, and the list of validation labels that comes with the package. A class folder
    that is no wnid is the class, whatever the votes.
    """

    def __init__(self, devkit_val_wnids: Sequence[str] | None) -> None:
        self._devkit = devkit_val_wnids
        self._disagreements = 0
        self._first: tuple[str, str] | None = None
        self.beyond_devkit = 0
        """Number of validation images with a number above the devkit's last."""
        self.highest_beyond = 0

    def class_of(
        self, place: str, folder: str | None, file_name: str, name: ImageName
    ) -> str | None:
        """Return the class of an image, or None without a vote.

        `folder` is the name of the class folder, or None; `place` names the folder in messages.
        """
        _, train_wnid, val_number, appended_wnid = name
        if val_number is None and train_wnid in (None, folder) and appended_wnid is None:
            return folder  # nearly all images: spares 1.28M of them the rest
        votes: dict[str, str] = {}
        if val_number is not None and self._devkit is not None:
            _vote(votes, "the devkit", _at(self._devkit, val_number))
            if val_number > len(self._devkit):
                self.beyond_devkit += 1
                self.highest_beyond = max(self.highest_beyond, val_number)
        _vote(votes, "its name", appended_wnid)
        if folder is not None and is_wnid(folder):
            _vote(votes, "its folder", folder)
        _vote(votes, "the beginning of its name", train_wnid)
        if val_number is not None:
            _vote(votes, "ImageNet's validation list", _at(imagenet_val_wnids(), val_number))
        if len(set(votes.values())) > 1:
            self._note_disagreement(f"{place}/{file_name}", votes)
        if folder is not None and not is_wnid(folder):
            return folder
        return next(iter(votes.values()), None)

    def check(self) -> None:
        """Raise UserError if the votes for any image disagree."""
        if self._first is not None:
            path, votes = self._first
            raise UserError(
                f"The sources of the class disagree for {plural(self._disagreements, 'image')}, "
                f"first for {path}: {votes}.",
                "Find out which source is right, and correct or remove the other.",
            )

    def _note_disagreement(self, path: str, votes: dict[str, str]) -> None:
        self._disagreements += 1
        found = (path, ", ".join(f"{wnid} by {source}" for source, wnid in votes.items()))
        # The first by name, as the order that a file system gives differs between copies.
        self._first = found if self._first is None else min(self._first, found)


def _vote(votes: dict[str, str], source: str, wnid: str | None) -> None:
    if wnid is not None:
        votes[source] = wnid


def _at(wnids: Sequence[str], number: int) -> str | None:
    return wnids[number - 1] if 1 <= number <= len(wnids) else None
