"""Adopting WebDataset tars of others as a shard set: indexes and a manifest beside them.

The tars do not change. A tar is adopted if every reader reads it alike. If any tar is refused, the
report has the reasons and nothing is written. Images are judged by their headers and not decoded.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from accelssl.errors import UserError
from accelssl.folder_lock import exclusive_folder
from accelssl.shards.adopt.adopt_tar import CheckedTar, TarToCheck, check_tar
from accelssl.shards.adopt.adopted_set import write_adopted_set
from accelssl.shards.adopt.adoption import AdoptedSplit, Adoption, Finding, Findings
from accelssl.shards.manifest import MANIFEST_NAME, SHARD_NAME, UNFINISHED_NAME, Manifest
from accelssl.shards.write.worker_pool import run_jobs, usable_cores

_SHOWN = 5
_COMPRESSED_TAR = re.compile(r"(.+)\.(tar\.(gz|bz2|xz|zst|lz4)|tgz|tbz2|txz)", re.IGNORECASE)


def index_shards(
    root: Path,
    *,
    classes: Sequence[str] | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Adoption:
    """Make a folder of WebDataset tars a shard set, if all of its tars are fit for it.

    A sample is a run of members with the same key: one .jpg or .jpeg, and one .cls with the label
    in digits. A tar belongs to val if "val", "valid" or "validation" is a word in its name, to
    test if "test" is, else to train. Tars are in the order of their sorted names, character by
    character: "a-10" comes before "a-9". Class names are `classes`, else the "wnid" in the samples'
    JSON if all have one and it agrees with the label, else the labels themselves.

    An index that is there with other content is kept as <name>.idx.orig. `workers` is the number of
    processes, by default one for each core (a script that asks for more than one needs
    `if __name__ == "__main__":`). `progress(done, total)` counts bytes.

    Raises UserError for a folder that is missing, unreadable, not writable, already a set, in use
    by another process, or without tars that hold samples. Class names that are empty or not unique
    raise UserError too.
    """
    if workers is not None and workers < 1:
        raise UserError(f"workers is {workers}.", "Use 1 or more.")
    names = None if classes is None else _class_names(classes)
    try:
        with _exclusive(root):
            return _Job(root, names).run(workers or usable_cores(), progress)
    except BrokenProcessPool:
        raise UserError(
            "A worker process was killed while it read tars, perhaps because memory ran out.",
            "Run it again with fewer workers.",
        ) from None
    except OSError as error:
        raise UserError(
            f"{error.filename or root} cannot be read or written: {error.strerror}.",
            "Check the space and the permissions: indexes go beside the tars.",
        ) from error


@contextmanager
def _exclusive(root: Path) -> Iterator[None]:
    """Hold the folder for this call: two at once would take each other's indexes away."""
    refusal = UserError(
        f"Another process is indexing or writing shards in {root}.", "Wait until it has ended."
    )
    with ExitStack() as held:
        try:
            held.enter_context(exclusive_folder(root, refusal))
        except OSError as error:
            raise _unreadable(root, error) from None
        yield


def _unreadable(root: Path, error: OSError) -> UserError:
    return UserError(
        f"{root} cannot be read: {error.strerror}.", "Name a folder of WebDataset tars."
    )


def _class_names(classes: Sequence[str]) -> tuple[str, ...]:
    names = tuple(classes)
    twice = [name for name, count in Counter(names).items() if count > 1]
    if not names or "" in names or twice:
        what = f"{twice[0]!r} is there twice" if twice else "a name is empty, or there are none"
        raise UserError(
            f"The class names do not fit: {what}.", "Give each class a name of its own."
        )
    return names


class _Classes:
    """The class labels of several tars, with a name each where all tars agree."""

    def __init__(self) -> None:
        self.labels: set[int] = set()
        self._name_of: dict[int, str] | None = {}

    def take(self, labels: Set[int], names: Mapping[int, str] | None) -> None:
        """Add the labels of a tar, and the name of each label if every label has one."""
        self.labels |= labels
        if self._name_of is not None and names is not None:
            agree = all(
                self._name_of.setdefault(label, name) == name for label, name in names.items()
            )
            self._name_of = self._name_of if agree else None
        else:
            self._name_of = None

    def names(self) -> tuple[str, ...]:
        """Return the names by label if every label has a name of its own, else the numbers."""
        count = 1 + max(self.labels)
        name_of = self._name_of or {}
        if len(set(name_of.values())) == len(name_of) == count:
            return tuple(name_of[label] for label in range(count))
        return tuple(map(str, range(count)))


class _Job:
    def __init__(self, root: Path, names: tuple[str, ...] | None) -> None:
        self._root, self._names = root, names
        self._tars, self._notes = _tars_of(root)
        self._classes = _Classes()

    def run(self, workers: int, progress: Callable[[int, int], None] | None) -> Adoption:
        """Check every tar, and write what makes them a set if all are fit for it."""
        total_bytes = sum(path.stat().st_size for path in self._tars if path.is_file())
        classes = len(self._names) if self._names else None
        jobs = [TarToCheck(path, classes) for path in self._tars]

        def on_progress(done_bytes: int) -> None:
            if progress is not None:
                progress(done_bytes, total_bytes)

        try:
            tars = run_jobs(check_tar, jobs, min(workers, len(jobs)), on_progress)
            return self._settle(dict(zip(self._tars, map(self._take, tars), strict=True)))
        finally:
            for job in jobs:
                job.index_part.unlink(missing_ok=True)

    def _take(self, tar: CheckedTar) -> CheckedTar:
        """Merge the labels, and drop them: thousands of tars may have thousands each."""
        if tar.samples:
            self._classes.take(tar.labels, tar.wnids)
        return replace(tar, labels=frozenset(), wnids=None)

    def _settle(self, checked: Mapping[Path, CheckedTar]) -> Adoption:
        problems = {path.name: _problems(path, tar) for path, tar in checked.items()}
        refused = {name: found for name, found in problems.items() if found}
        if refused:
            return Adoption(self._root, 0, {}, (), refused, tuple(self._notes))
        used = {path: tar for path, tar in checked.items() if tar.samples}
        if not used:
            raise UserError(
                f"The tars in {self._root} hold no samples: {_some([t.name for t in checked])}.",
                "A sample is an image and its label, such as 0001.jpg and 0001.cls.",
            )
        classes = self._names or self._classes.names()
        manifest, kept = write_adopted_set(self._root, used, classes)
        self._note(checked, manifest, kept)
        return Adoption(
            root=self._root,
            classes=len(classes),
            splits=_counts(manifest),
            skipped=_skipped(used),
            refused={},
            notes=tuple(self._notes),
        )

    def _note(
        self, checked: Mapping[Path, CheckedTar], manifest: Manifest, kept: list[str]
    ) -> None:
        empty = [path.name for path, tar in checked.items() if not tar.samples]
        if empty:
            self._notes.append(f"left out, as they hold no samples: {_some(empty)}")
        if "train" not in manifest.splits:
            self._notes.append("no tar is for training: each has val or test in its name")
        with_json = [path.name for path, tar in checked.items() if tar.with_json]
        if with_json and "json" not in manifest.components:
            self._notes.append(f"not every sample has a JSON, so none is used: {_some(with_json)}")
        labels = range(len(manifest.classes))
        unused = [str(label) for label in labels if label not in self._classes.labels]
        if unused:
            self._notes.append(f"{len(unused):,} labels have no sample: {_some(unused)}")
        if kept:
            self._notes.append(f"indexes that were there and differed are kept: {_some(kept)}")


def _tars_of(root: Path) -> tuple[list[Path], list[str]]:
    """Return the tars in a folder, sorted, and notes on other files that look like tars."""
    try:
        names = sorted(path.name for path in root.iterdir())
    except OSError as error:
        raise _unreadable(root, error) from None
    if MANIFEST_NAME in names:
        raise UserError(
            f"{root} already is a shard set.",
            f"To index its tars anew, remove {root / MANIFEST_NAME} first.",
        )
    if UNFINISHED_NAME in names:
        raise UserError(
            f"{root} holds shards of a job that did not finish.",
            "Run the same `accelssl shard-imagenet` again.",
        )
    tars = [name for name in names if name.endswith(".tar") and not name.startswith(".")]
    compressed = [
        name
        for name in names
        if (match := _COMPRESSED_TAR.fullmatch(name)) and f"{match[1]}.tar" not in tars
    ]
    if not tars:
        if compressed:
            raise UserError(
                f"{root} has only compressed tars: {_some(compressed)}.",
                "Unpack them with gunzip (or unxz, unzstd): samples are read from plain tars.",
            )
        raise UserError(
            f"{root} has no .tar files.",
            "Name the folder of the WebDataset tars: its subfolders are not searched.",
        )
    _refuse_what_is_no_index(root, names, tars)
    notes = [f"left out, as they are compressed: {_some(compressed)}"] if compressed else []
    return [root / name for name in tars], notes


def _refuse_what_is_no_index(root: Path, names: list[str], tars: list[str]) -> None:
    indexes = {f"{tar.removesuffix('.tar')}.idx" for tar in tars}
    for name in names:
        if name in indexes and not (root / name).is_file():
            raise UserError(
                f"{root / name} is no file, but an index must be written there.", "Move it away."
            )


def _problems(path: Path, tar: CheckedTar) -> tuple[Finding, ...]:
    if SHARD_NAME.fullmatch(path.stem):
        return tar.problems
    rename = Finding("its name does not fit", "rename it to letters, digits, _, - and . alone")
    return (rename, *tar.problems)


def _skipped(tars: Mapping[Path, CheckedTar]) -> tuple[Finding, ...]:
    skipped = Findings()
    for path, tar in tars.items():
        for found in tar.skipped:
            skipped.add(found.what, f"{found.first} in {path.name}", found.count)
    return tuple(skipped.found.values())


def _counts(manifest: Manifest) -> dict[str, AdoptedSplit]:
    return {
        name: AdoptedSplit(
            len(split.shards), split.written, sum(shard.tar_bytes for shard in split.shards)
        )
        for name, split in manifest.splits.items()
    }


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
