"""Selection of images: a subset of classes, and a limit for each class."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from accelssl.errors import UserError
from accelssl.shards.sources.ilsvrc2012 import in100_wnids

IN100 = "in100"
_WNID_FIRST = re.compile(r"(n[0-9]{8})(?:[\s,;:]|$)")


@dataclass(frozen=True)
class Selection:
    """The images to take from a source; the default is all.

    `subset` is "in100" (the ImageNet-100 of CMC) or the path of a text file with one class a line;
    `classes` names them directly. `limit_per_class` is the most images of a class in a split. Which
    ones is drawn by a hash of class and name: the same in every packaging, and a lower limit
    chooses a part of what a higher one chooses.
    """

    subset: str | None = None
    classes: tuple[str, ...] | None = None
    limit_per_class: int | None = None

    def __post_init__(self) -> None:
        if self.limit_per_class is not None and self.limit_per_class < 1:
            raise UserError(f"limit_per_class is {self.limit_per_class}.", "Use 1 or more.")
        if self.subset is not None and self.classes is not None:
            raise UserError(
                f"Both a subset ({self.subset}) and classes ({_some(self.classes)}) are given.",
                "Give one of the two.",
            )

    def chosen(self) -> tuple[str, ...] | None:
        """Return the names of the chosen classes, sorted, or None for all classes.

        Raises UserError when the list cannot be read, is empty, or has a name twice.
        """
        if self.subset is None and self.classes is None:
            return None
        origin = "The list of classes" if self.subset is None else f"The subset {self.subset}"
        names = self.classes if self.subset is None else _subset(self.subset)
        if not names:
            raise UserError(f"{origin} names no class.", "Name at least one.")
        repeated = sorted(name for name, n in Counter(names).items() if n > 1)
        if repeated:
            raise UserError(
                f"{origin} has {len(repeated)} names more than once: {_some(repeated)}.",
                "Name each class once.",
            )
        return tuple(sorted(names))

    def options(self, chosen: tuple[str, ...] | None) -> Mapping[str, int | str]:
        """Return the manifest's options for the selection; `chosen` is the result of `chosen()`."""
        options: dict[str, int | str] = {}
        if chosen is not None:
            # A path says nothing to other machines, so of a file only its name is kept.
            options["subset"] = "classes" if self.subset is None else Path(self.subset).name
            text = "\n".join(chosen).encode(errors="surrogateescape")
            options["subset_sha256"] = hashlib.sha256(text).hexdigest()
        if self.limit_per_class is not None:
            options["limit_per_class"] = self.limit_per_class
        return options


def refuse_missing(chosen: tuple[str, ...], found: Mapping[str, object]) -> None:
    """Raise UserError for chosen classes that the source lacks."""
    missing = [name for name in chosen if name not in found]
    if missing:
        raise UserError(
            f"{len(missing)} of the {len(chosen)} chosen classes are not in the source: "
            f"{_some(missing)}.",
            "Check their names, and that the source is complete.",
        )


def _subset(subset: str) -> tuple[str, ...]:
    if subset == IN100:
        return in100_wnids()
    return class_names(Path(subset))


def class_names(path: Path) -> tuple[str, ...]:
    """Return the names in a text file with one class a line, in its order.

    Blank lines and lines that begin with # do not count. UserError when it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(
            f"The list of classes {path} cannot be read: {error.strerror}.",
            f"Use the path of a text file with one class a line, or for a subset {IN100}.",
        ) from None
    except UnicodeDecodeError:
        raise UserError(
            f"The list of classes {path} is not UTF-8 text.",
            "Use a text file with one class a line.",
        ) from None
    lines = (line.strip() for line in text.splitlines())
    return tuple(_first(line) for line in lines if line and not line.startswith("#"))


def _first(line: str) -> str:
    # Lists of ImageNet classes often go on with the class in words; other names may hold spaces.
    wnid = _WNID_FIRST.match(line)
    return wnid.group(1) if wnid else line


def _some(names: "tuple[str, ...] | list[str]") -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
