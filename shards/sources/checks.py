"""Checks of the images found, before they get labels."""

from collections.abc import Mapping

from accelssl.errors import UserError
from accelssl.shards.sources.gathering import Gathering
from accelssl.shards.sources.layout import LAYOUT_REMEDY, Part


def refuse_unknown_classes(parts: tuple[Part, ...], gathering: Gathering) -> None:
    """Raise UserError for images of an unknown class."""
    if not gathering.unknown:
        return
    where = _where(parts)
    no_folders = "" if gathering.class_number else " has no class folders, and it"
    count, examples = gathering.unknown, gathering.unknown_examples
    raise UserError(
        f"{where}{no_folders} has {count} images of an unknown class: {_some(examples, count)}.",
        "Put each image into the folder of its class, or remove it.",
    )


def refuse_validation_as_train(parts: tuple[Part, ...], train: Gathering) -> None:
    """Raise UserError if all images of train are ImageNet's validation images."""
    if train.is_validation_set:
        raise UserError(
            f"{_where(parts)} has only ImageNet's validation images.",
            "Name the training images as the source, and these with --val.",
        )


def refuse_empty_classes(
    parts: tuple[Part, ...], images_by_class: Mapping[str, int], notes: tuple[str, ...]
) -> None:
    """Raise UserError if train has no class, or a class without images.

    Labels would depend on whether such a class counts. The message ends with `notes`, sentences on
    what was not read.
    """
    if not images_by_class:
        what = f"{_where(parts)} has no class folders."
        raise UserError(" ".join((what, *notes)), LAYOUT_REMEDY)
    empty = sorted(name for name, images in images_by_class.items() if not images)
    if empty:
        folder = f"{parts[0].path}/{empty[0]}" if len(parts) == 1 else empty[0]
        what = f"The class folder {folder} has no images."
        raise UserError(" ".join((what, *notes)), "Put images into it, or remove it.")


def refuse_bad_val(
    parts: tuple[Part, ...], val: Gathering, classes: tuple[str, ...], *, is_subset: bool
) -> None:
    """Raise UserError if val has no images, or a class that train lacks."""
    where = _where(parts)
    unknown = sorted(val.class_number.keys() - set(classes))
    if unknown:
        raise UserError(
            f"{where} has {len(unknown)} classes that train lacks: {_some(unknown, len(unknown))}.",
            "Use the same class names in both, and remove classes without training images.",
        )
    if not val.class_number and not is_subset:
        raise UserError(f"{where} has no class folders.", LAYOUT_REMEDY)
    if not any(val.images_by_class().values()):
        of_chosen = " of the chosen classes" if is_subset else ""
        raise UserError(f"{where} has no images{of_chosen}.", "Fill the folder or remove it.")


def _where(parts: tuple[Part, ...]) -> str:
    return str(parts[0].path) if len(parts) == 1 else f"{parts[0].path} to {parts[-1].path.name}"


def _some(names: list[str], count: int) -> str:
    return ", ".join(names[:5]) + (", ..." if count > len(names[:5]) else "")
