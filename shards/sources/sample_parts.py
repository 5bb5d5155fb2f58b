"""Image, label and JSON of a WebDataset sample, if all readers agree on them."""

from typing import NamedTuple

from accelssl.errors import UserError
from accelssl.shards.sources.image_name import EXTENSIONS
from accelssl.shards.tars.tar_members import Kind, TarMember
from accelssl.shards.tars.tar_samples import TarSample

REMEDY = "Give each sample one image and one .cls with its label in digits."
_TAKEN = ("jpg", "jpeg", "png", "webp")
_LABEL, _ABOUT = "cls", "json"


class SampleParts(NamedTuple):
    """The used and the unused members of a sample."""

    image: TarMember
    label: TarMember
    about: TarMember | None
    extras: tuple[TarMember, ...]


def sample_parts(place: str, sample: TarSample) -> SampleParts | None:
    """Return the parts of a sample, or None if it has neither an image nor a label.

    `place` names the tar for messages. Raises UserError for two images, two members of the same
    name, a missing image or label, and a part that is no file or of an unsupported kind. A key that
    seems to have a dot is refused too.
    """
    where = f"{place}/{sample.key}"
    _refuse_dotted(place, sample)
    images = [(e, member) for e, member in sample.members if f".{e}" in EXTENSIONS]
    if len(images) > 1:
        raise UserError(
            f"The sample {where} has {len(images)} images: "
            f"{', '.join(image.path for _, image in images)}.",
            REMEDY,
        )
    _refuse_same_names(where, sample)
    by_extension = dict(sample.members)
    label, about = by_extension.get(_LABEL), by_extension.get(_ABOUT)
    if not images:
        if label is None:
            return None
        raise UserError(f"The sample {where} has a label, {label.path}, but no image.", REMEDY)
    ((extension, image),) = images
    if label is None:
        raise UserError(f"The sample {where} has no .cls.", REMEDY)
    if extension not in _TAKEN:
        raise UserError(
            f"The image {place}/{image.path} is none of {', '.join(_TAKEN)}, which tars of samples "
            "may have.",
            "Convert it to PNG, which keeps every pixel, or put it into a class folder.",
        )
    for part in (label, about):
        if part is not None and part.kind is not Kind.FILE:
            raise UserError(
                f"{place}/{part.path} is {part.kind.value}, which cannot be read in place.",
                "Pack the tar again with the file itself.",
            )
    used = (image, label, about)
    extras = tuple(member for _, member in sample.members if member not in used)
    return SampleParts(image, label, about, extras)


def _refuse_same_names(where: str, sample: TarSample) -> None:
    by_extension: dict[str, TarMember] = {}
    for extension, member in sample.members:
        other = by_extension.setdefault(extension, member)
        if other is not member:
            raise UserError(
                f"The sample {where} has two members of the same name: {other.path} and "
                f"{member.path}.",
                REMEDY,
            )


def _refuse_dotted(place: str, sample: TarSample) -> None:
    """Refuse members that look like parts of samples with dotted keys.

    "img.v2.0001.jpg" has the key "img" for all readers, which would pass over it as an extra of
    another sample; "0001.mask.png" may well be an extra of "0001".
    """
    by_stem: dict[str, set[str]] = {}
    for extension, _ in sample.members:
        stem, _, last = extension.rpartition(".")
        part = _LABEL if last == _LABEL else "image" if f".{last}" in EXTENSIONS else ""
        by_stem.setdefault(stem, set()).add(part)
    needed = {"image", _LABEL}
    missing = needed - by_stem.pop("", set())
    for extension, member in sample.members:
        parts = by_stem.get(extension.rpartition(".")[0], set())
        if parts & missing if missing else parts >= needed:
            raise UserError(
                f"The key of {place}/{member.path} has a dot in it, so that it is a part of the "
                f"sample {sample.key} for all readers.",
                "Replace the dots in the keys by another character, such as an underscore.",
            )
