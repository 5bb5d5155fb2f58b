"""The folder of a shard set while it is being written.

From the first moment to the last it holds unfinished.json, which marks what an interrupted job left
behind as ours, and until the last moment no manifest, so that nobody can open half a set.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from accelssl.errors import UserError
from accelssl.pipeline.manifest import MANIFEST_NAME, UNFINISHED_NAME, Manifest, ShardEntry
from accelssl.pipeline.shard_writer import PART, Quarantined, WrittenShard

QUARANTINE_NAME = "quarantine.tsv"
_OURS = re.compile(
    r"([a-z0-9_]+-[0-9]{6,}\.(tar|idx)|quarantine\.tsv|manifest\.json|unfinished\.json)"
    + f"({re.escape(PART)})?"
)
_ONE_LINE = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


class SetFolder:
    """Writes into a folder what makes up a set, in an order that is safe to interrupt.

    Its methods raise OSError when the folder cannot be written.
    """

    def __init__(self, root: Path) -> None:
        """Raises UserError when the folder is already a set, or holds files of others."""
        self.root = root
        if (root / MANIFEST_NAME).exists():
            raise UserError(
                f"{root} already holds a shard set.", "Choose another folder, or remove this one."
            )
        if not root.exists():
            return
        if not root.is_dir():
            raise UserError(f"{root} is not a folder.", "Choose a folder to write to.")
        names = sorted(path.name for path in root.iterdir())
        leftovers = UNFINISHED_NAME in names
        foreign = [name for name in names if not (leftovers and _OURS.fullmatch(name))]
        if foreign:
            raise UserError(
                f"{root} holds other files, such as {foreign[0]}.", "Choose an empty folder."
            )

    def begin(self, options: Mapping[str, object]) -> None:
        """Make the folder, mark it as unfinished, and clear away what an earlier job left."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._replace(UNFINISHED_NAME, json.dumps(options, sort_keys=True).encode())
        for path in self.root.iterdir():
            if path.name != UNFINISHED_NAME and _OURS.fullmatch(path.name):
                path.unlink()

    def stem(self, split: str, number: int) -> Path:
        """The path of a shard's files, without their suffix."""
        return self.root / f"{split}-{number:06d}"

    def publish(self, shard: WrittenShard, number: int) -> ShardEntry | None:
        """Give a written shard its final name, or remove it (None) if it holds no samples.

        DALI reads an empty tar as one empty sample.
        """
        stem = self.stem(shard.plan.split, number)
        for suffix in (".tar", ".idx"):
            part = shard.plan.stem.with_name(shard.plan.stem.name + suffix + PART)
            if shard.samples:
                part.replace(stem.with_name(stem.name + suffix))
            else:
                part.unlink()
        if not shard.samples:
            return None
        return ShardEntry(
            name=stem.name,
            samples=shard.samples,
            tar_bytes=shard.tar_bytes,
            tar_sha256=shard.tar_sha256,
            idx_bytes=shard.idx_bytes,
            idx_sha256=shard.idx_sha256,
        )

    def write_quarantine(self, quarantined: Mapping[str, Sequence[Quarantined]]) -> Path:
        """List the images, by split, that could not be written."""
        rows = [("split", "class", "name", "reason")]
        for split, images in quarantined.items():
            rows += [(split, image.wnid, image.name, image.reason) for image in images]
        lines = ("\t".join(cell.translate(_ONE_LINE) for cell in row) + "\n" for row in rows)
        # File names may hold bytes that are no text; they show as escapes.
        self._replace(QUARANTINE_NAME, "".join(lines).encode(errors="backslashreplace"))
        return self.root / QUARANTINE_NAME

    def finish(self, manifest: Manifest) -> None:
        """Make the folder a set, once everything else is safely on the disk."""
        self._sync()
        self._replace(MANIFEST_NAME, manifest.to_bytes())
        self._sync()
        (self.root / UNFINISHED_NAME).unlink()

    def _replace(self, name: str, data: bytes) -> None:
        part = self.root / (name + PART)
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.root / name)

    def _sync(self) -> None:
        """Make the names in the folder last through a power cut, not only the files' bytes."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
