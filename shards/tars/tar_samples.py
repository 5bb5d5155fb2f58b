"""Samples of a tar, grouped by the rule that WebDataset readers share.

Within the base name, all that follows the first dot is the extension, whatever its case; the rest
of the path is the key. A sample is a run of members with the same key.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from accelssl.shards.tars.tar_members import Kind, TarMember


class TarSample(NamedTuple):
    """A run of members with the same key, each with its extension in lower case."""

    key: str
    members: tuple[tuple[str, TarMember], ...]


def key_and_extension(path: str) -> tuple[str, str] | None:
    """Return ("a/b", "seg.png") for "a/b.seg.PNG"; None for a hidden file or without a dot."""
    folder, slash, base = path.rpartition("/")
    stem, dot, extension = base.partition(".")
    return (folder + slash + stem, extension.lower()) if stem and dot else None


def tar_samples(
    members: Iterable[TarMember], on_stray: Callable[[TarMember], None]
) -> Iterator[TarSample]:
    """Yield the samples in order; `on_stray` gets each member outside of samples.

    Folders, hidden files and names without a dot are outside of samples and do not end one.
    Links and special files count as members of a sample, so that the caller notices them.
    """
    key, run = "", list[tuple[str, TarMember]]()
    for member in members:
        name = key_and_extension(member.path)
        if name is None or member.kind is Kind.FOLDER:
            on_stray(member)
            continue
        if run and name[0] != key:
            yield TarSample(key, tuple(run))
            run.clear()
        key = name[0]
        run.append((name[1], member))
    if run:
        yield TarSample(key, tuple(run))
