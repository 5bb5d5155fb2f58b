"""Report on tars that others wrote."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from accelssl.text import plural, printable


@dataclass
class Finding:
    """A kind of finding, with its first place and its number."""

    what: str
    first: str
    count: int = 1

    def __str__(self) -> str:
        more = f" and {self.count - 1:,} more" if self.count > 1 else ""
        return f"{self.what}: {self.first}{more}"


@dataclass
class Findings:
    """Findings by kind, in the order of their first places."""

    found: dict[str, Finding] = field(default_factory=dict)

    def add(self, what: str, where: str, count: int = 1) -> None:
        if what in self.found:
            self.found[what].count += count
        else:
            self.found[what] = Finding(what, where, count)


@dataclass(frozen=True)
class AdoptedSplit:
    """Content of a split of the set."""

    tars: int
    samples: int
    size_bytes: int


@dataclass(frozen=True)
class Adoption:
    """Outcome for a folder of tars: a shard set, or no change if a tar was refused.

    `refused` has by tar what is wrong with it; `skipped` what is in the tars and not in the set;
    `notes` what else the user should know, a sentence each.
    """

    root: Path
    classes: int
    splits: Mapping[str, AdoptedSplit]
    skipped: tuple[Finding, ...]
    refused: Mapping[str, tuple[Finding, ...]]
    notes: tuple[str, ...]

    @property
    def is_a_set(self) -> bool:
        """True if the folder is a shard set."""
        return not self.refused

    def __str__(self) -> str:
        return "\n".join(map(printable, self._refusal() if self.refused else self._success()))

    def _success(self) -> list[str]:
        lines = [f"{self.root}: now a shard set of {plural(self.classes, 'class')}"]
        lines += [
            f"{name}: {plural(split.samples, 'sample')} in {plural(split.tars, 'tar')} "
            f"({split.size_bytes / 1e6:,.1f} MB)"
            for name, split in self.splits.items()
        ]
        lines += [f"not used, {found.count:,} {found}" for found in self.skipped]
        return [
            *lines,
            *self.notes,
            "Images and order are as they were; to check them: "
            f"accelssl verify-shards {self.root} --full",
        ]

    def _refusal(self) -> list[str]:
        lines = [
            f"{self.root} was left as it is: "
            f"{plural(len(self.refused), 'tar')} cannot be used as they are"
        ]
        for tar, problems in self.refused.items():
            lines += [f"{tar}: {problem}" for problem in problems]
        return [
            *lines,
            *self.notes,
            "Repair these tars, or move them away. To pack their images anew, extract them into a "
            "folder for each class and run `accelssl shard-imagenet` on that.",
        ]
