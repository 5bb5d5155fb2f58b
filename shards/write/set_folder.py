"""The place of a shard set during writing: a folder, or a prefix of an object store.

During the job the place holds unfinished.json, the journal of the finished shards. The manifest is
written last, so nobody can open an incomplete set. Every file appears in full or not at all. After
a kill at any moment, the same call continues the job.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from accelssl.errors import UserError
from accelssl.folder_lock import exclusive_folder
from accelssl.shards.manifest import MANIFEST_NAME, UNFINISHED_NAME, Manifest, ShardEntry
from accelssl.shards.storage.folder import PART, Folder
from accelssl.shards.storage.storage import Location, Storage, open_storage
from accelssl.shards.write.journal import Journal, Options, Record, fingerprint, read_journal
from accelssl.shards.write.option_ranges import Spelling
from accelssl.shards.write.shard_writer import Quarantined, WrittenShard

QUARANTINE_NAME = "quarantine.tsv"
_OURS = re.compile(
    r"([a-z0-9_]+-[0-9]{6,}\.(tar|idx)|quarantine\.tsv|manifest\.json|unfinished\.json)"
    + f"({re.escape(PART)})?"
)
_FILES = (".tar", ".idx")
_ONE_LINE = str.maketrans({"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"})


class SetFolder:
    """Writer of a set's files, in an order that is safe to interrupt.

    Made by `set_folder`. Raises UserError when the place holds a finished set or files of others.
    Its methods raise OSError when it cannot be written.
    """

    def __init__(self, storage: Storage, scratch: Path) -> None:
        self.storage = storage
        self.location = storage.location
        self._scratch = scratch
        self._journal = Journal({}, [])
        self._found = storage.names() if storage.exists() else []
        self._refuse_what_is_not_ours(self._found)

    def done_before(self, options: Options, spelled: Spelling = str) -> list[Record]:
        """Return the records of an earlier call of the same job, without changing the place.

        Raises UserError where that call had other options; `spelled` gives their names in it.
        """
        if UNFINISHED_NAME in self._found:
            self._journal = read_journal(self.storage)
            self._refuse_other_options(options, spelled)
        self._journal = Journal(options, self._still_there(self._journal.records))
        return self._journal.records

    def begin(self) -> None:
        """Mark the place as unfinished, and delete the incomplete files of an earlier call."""
        self._write_journal()
        # The manifest first: killed after it was written, the job is still to be ended in order.
        self.storage.delete(MANIFEST_NAME)
        entries = [record.entry for record in self._journal.records if record.entry]
        kept = {entry.name + suffix for entry in entries for suffix in _FILES}
        for name in self._found:
            if name not in kept | {UNFINISHED_NAME}:
                self.storage.delete(name)

    def stem(self, split: str, number: int) -> Path:
        """Return the path for the files of a plan, without suffix."""
        return self._scratch / f"{split}-{number:06d}"

    def publish(self, shard: WrittenShard, number: int) -> Record:
        """Give a written shard its final name, or remove it if it holds no samples.

        DALI reads an empty tar as one empty sample.
        """
        name = f"{shard.plan.split}-{number:06d}"
        for suffix in _FILES:
            part = shard.plan.stem.with_name(shard.plan.stem.name + suffix + PART)
            if shard.samples:
                self.storage.take(part, name + suffix)
            else:
                part.unlink()
        entry = ShardEntry(
            name=name,
            samples=shard.samples,
            tar_bytes=shard.tar_bytes,
            tar_sha256=shard.tar_sha256,
            idx_bytes=shard.idx_bytes,
            idx_sha256=shard.idx_sha256,
        )
        record = Record(
            plan=fingerprint(shard.plan),
            entry=entry if shard.samples else None,
            transcoded=shard.transcoded,
            quarantined=shard.quarantined,
        )
        self._journal.records.append(record)
        self._write_journal()
        return record

    def write_quarantine(self, quarantined: Mapping[str, Sequence[Quarantined]]) -> str:
        """Write the list of quarantined images by split, and return its path."""
        rows = [("split", "class", "name", "reason")]
        for split, images in quarantined.items():
            rows += [(split, image.wnid, image.name, image.reason) for image in images]
        lines = ("\t".join(cell.translate(_ONE_LINE) for cell in row) + "\n" for row in rows)
        # File names may hold bytes that are no text; they show as escapes.
        self.storage.write(QUARANTINE_NAME, "".join(lines).encode(errors="backslashreplace"))
        return self.storage.path_of(QUARANTINE_NAME)

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest last: the folder becomes a set."""
        self.storage.write(MANIFEST_NAME, manifest.to_bytes())
        self.storage.delete(UNFINISHED_NAME)

    def _write_journal(self) -> None:
        self.storage.write(UNFINISHED_NAME, self._journal.to_bytes())

    def _refuse_what_is_not_ours(self, names: Sequence[str]) -> None:
        unfinished = UNFINISHED_NAME in names
        if MANIFEST_NAME in names and not unfinished:
            raise UserError(
                f"{self.location} already holds a shard set.",
                "Choose another folder, or remove this one.",
            )
        # A call that was stopped at its first write left no more than a part of the journal.
        foreign = [
            name
            for name in names
            if not (unfinished and _OURS.fullmatch(name)) and name != UNFINISHED_NAME + PART
        ]
        if foreign:
            raise UserError(
                f"{self.location} holds other files, such as {foreign[0]}.",
                "Choose an empty folder.",
            )

    def _refuse_other_options(self, options: Options, spelled: Spelling) -> None:
        earlier = self._journal.options
        changed = [
            f"{spelled(key)} {earlier.get(key, 'not set')}, now {options.get(key, 'not set')}"
            for key in sorted(earlier.keys() | options.keys())
            if earlier.get(key) != options.get(key)
        ]
        if changed:
            raise UserError(
                f"{self.location} holds an unfinished set made with {'; '.join(changed)}.",
                "Use the same source and options to continue it, or choose another folder.",
            )

    def _still_there(self, records: Sequence[Record]) -> list[Record]:
        """Return the records before the first one with missing or changed files."""
        sizes = self.storage.sizes_bytes() if records else {}
        there: list[Record] = []
        for record in records:
            entry = record.entry
            if entry and (sizes.get(entry.name + ".tar"), sizes.get(entry.name + ".idx")) != (
                entry.tar_bytes,
                entry.idx_bytes,
            ):
                break
            there.append(record)
        return there


@contextmanager
def set_folder(location: Location) -> Iterator[SetFolder]:
    """Open the place at a location, made if needed, for this process alone.

    Raises UserError as SetFolder does, when another process writes a set there (in a local folder;
    an object store has no locks), and when it is a file.
    """
    storage = open_storage(location)
    if not isinstance(storage, Folder):
        with tempfile.TemporaryDirectory(prefix="accelssl-") as scratch:
            yield SetFolder(storage, Path(scratch))
        return
    if storage.root.exists() and not storage.root.is_dir():
        raise UserError(f"{location} is not a folder.", "Choose a folder to write to.")
    is_new = _make(storage.root)
    try:
        refusal = UserError(
            f"Another process is writing a set in {storage.root}.",
            "Wait for it, or choose another folder.",
        )
        with exclusive_folder(storage.root, refusal):
            yield SetFolder(storage, storage.root)
    finally:
        if is_new:
            with suppress(OSError):
                storage.root.rmdir()  # only if nothing came into it


def _make(folder: Path) -> bool:
    """Make the folder; return True if it was not there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True
