"""Report of a sharding job."""

from collections.abc import Mapping
from dataclasses import dataclass

from accelssl.shards.images.smaller import is_made_smaller
from accelssl.shards.manifest import SplitEntry
from accelssl.text import plural, printable


@dataclass(frozen=True)
class SplitReport:
    """Counts of a split's images.

    `transcoded` counts the written ones that are not the source's bytes, by reason.
    """

    written: int
    quarantined: int
    transcoded: Mapping[str, int]
    shards: int
    size_bytes: int

    @classmethod
    def of(cls, entry: SplitEntry) -> "SplitReport":
        size_bytes = sum(shard.tar_bytes + shard.idx_bytes for shard in entry.shards)
        return cls(
            entry.written, entry.quarantined, entry.transcoded, len(entry.shards), size_bytes
        )

    @property
    def shrunk(self) -> int:
        """Number of the transcoded images that were made smaller."""
        return sum(n for why, n in self.transcoded.items() if is_made_smaller(why))

    def changes(self) -> list[str]:
        """Describe the changes to written images, a line for each reason."""
        return [
            f"{n} {'shrunk' if is_made_smaller(why) else 'transcoded'}: {why}"
            for why, n in sorted(self.transcoded.items())
        ]


@dataclass(frozen=True)
class ShardingReport:
    """The outcome of a sharding job.

    `ignored` counts the entries of the source that are no images; `ignored_examples` has the paths,
    relative to the source, of the first ones. `quarantine` is the path of the list of images that
    did not decode. `taken_over` counts the images that an earlier, interrupted call had finished.
    """

    out: str
    digest: str
    quarantine: str
    classes: int
    splits: Mapping[str, SplitReport]
    ignored: int
    ignored_examples: tuple[str, ...]
    notes: tuple[str, ...]
    taken_over: int
    elapsed_s: float

    @property
    def images(self) -> int:
        """Number of images checked, by this call or an earlier one that it continued."""
        return sum(split.written + split.quarantined for split in self.splits.values())

    @property
    def images_per_s(self) -> float:
        return (self.images - self.taken_over) / self.elapsed_s

    def __str__(self) -> str:
        classes = plural(self.classes, "class")
        lines = [f"{self.out}: {classes}, {self.images_per_s:,.0f} images/s"]
        if self.taken_over:
            lines.append(f"done before by a call that was stopped: {self.taken_over:,} images")
        for name, split in self.splits.items():
            lines.append(
                f"{name}: {plural(split.written, 'image')} in {plural(split.shards, 'shard')} "
                f"({split.size_bytes / 1e6:,.1f} MB), {split.quarantined} quarantined"
            )
            lines += [f"  {change}" for change in split.changes()]
        if any(split.quarantined for split in self.splits.values()):
            lines.append(f"what did not decode, and why: {self.quarantine}")
        if self.ignored:
            more = ", ..." if self.ignored > len(self.ignored_examples) else ""
            examples = ", ".join(self.ignored_examples)
            lines.append(f"no images, and not read: {self.ignored:,}, {examples}{more}")
        lines += self.notes
        lines.append(f"digest {self.digest}")
        return "\n".join(map(printable, lines))
