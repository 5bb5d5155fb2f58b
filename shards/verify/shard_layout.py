"""Comparison of a shard's tar with its index, and the place of each sample."""

import re
import tarfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import BinaryIO, NamedTuple

from accelssl.shards.shard_index import Extent
from accelssl.shards.tars.tar_members import DamagedTar, Kind, TarMember, tar_members
from accelssl.shards.tars.tar_samples import TarSample, tar_samples
from accelssl.shards.verify.findings import INDEX, Findings
from accelssl.shards.verify.index_rows import Entry, IndexRows

# As accelssl counts samples.
_OWN_KEY = re.compile(r"[0-9]{8}|[1-9][0-9]{8,}")
_USTAR = b"ustar\x0000"
_USTAR_AT = 257
_LINE_END_BYTES = 2
_COMPONENT_OF = {"jpg": "jpg", "jpeg": "jpg", "cls": "cls", "json": "json"}


class FoundSample(NamedTuple):
    """A sample's key, and the places of the components that were found."""

    key: str
    extents: Mapping[str, Extent]


class ShardLayout:
    """One shard's tar and (unless it is unusable) its index."""

    def __init__(
        self,
        name: str,
        file: BinaryIO,
        tar_bytes: int,
        rows: IndexRows | None,
        components: tuple[str, ...],
        findings: Findings,
    ) -> None:
        self._tar = f"{name}.tar"
        self._file, self._tar_bytes = file, tar_bytes
        self._rows, self._components = rows, components
        self._findings = findings
        self._row_done = -1
        self._end_of_last = 0

    def samples(self, is_adopted: bool) -> Iterator[FoundSample]:
        """Yield all samples in the order of the tar; add every disagreement as a problem.

        Samples behind a damaged header are those that the index names. Raises OSError.
        """
        is_damaged = False
        try:
            yield from self._adopted_samples() if is_adopted else self._own_samples()
        except DamagedTar as error:
            is_damaged = True
            self._wrong("the tar is damaged", self._tar, str(error))
        yield from self._rest(is_damaged)

    def _own_samples(self) -> Iterator[FoundSample]:
        members = map(self._plainly_headed, self._members())
        for sample in tar_samples(members, self._stray):
            self._check_own(sample)
            extents = {
                ext: _extent(member) for ext, member in sample.members if member.kind is Kind.FILE
            }
            yield FoundSample(sample.key, extents)

    def _check_own(self, sample: TarSample) -> None:
        where = f"{self._tar}: key {sample.key}"
        found = tuple(member.path for _, member in sample.members)
        if found != tuple(f"{sample.key}.{ext}" for ext in self._components):
            what = f"its members are {', '.join(found)}"
            self._wrong(f"a sample is not {', '.join(self._components)}", where, what[:200])
        if not _OWN_KEY.fullmatch(sample.key):
            what = "accelssl numbers samples, in eight digits or as many as it takes"
            self._wrong("a key is no number of a sample", where, what)
        for _, member in sample.members:
            if member.kind is not Kind.FILE:
                what = f"{member.path} is {member.kind.value}"
                self._wrong("something else in the tar", where, what)
            elif self._rows is not None:
                self._check_entry(where, member, self._rows.meet(member.offset))

    def _check_entry(self, where: str, member: TarMember, entry: Entry | None) -> None:
        if entry is None:
            what = f"{member.path} at byte {member.offset} is not in the index"
            self._wrong("the index disagrees with the tar", where, what)
            return
        self._row_done = entry.row
        if (entry.name, entry.extent.size_bytes) != (member.path, member.size_bytes):
            what = (
                f"{member.path} has {member.size_bytes} bytes at byte {member.offset}, the index "
                f"says {entry.name} with {entry.extent.size_bytes}"
            )
            self._wrong("the index disagrees with the tar", where, what)

    def _adopted_samples(self) -> Iterator[FoundSample]:
        """Yield samples whose names and order are free: index entries must be data of members."""
        if self._rows is None:
            yield from self._samples_by_name()
            return
        row, met = -1, 0
        for member in self._members():
            entry = self._rows.meet(member.offset) if member.kind is Kind.FILE else None
            if entry is None:
                continue
            self._check_adopted_size(member, entry, self._rows)
            row, met = entry.row, met + 1 if entry.row == row else 1
            if met == len(self._components):
                self._row_done = row
                yield FoundSample(self._rows.key(row), self._rows.extents(row))

    def _samples_by_name(self) -> Iterator[FoundSample]:
        for sample in tar_samples(self._members(), lambda member: None):
            extents = {
                component: _extent(member)
                for ext, member in sample.members
                if (component := _COMPONENT_OF.get(ext)) and member.kind is Kind.FILE
            }
            if {"jpg", "cls"} <= extents.keys():
                extents["cls"] = self._without_line_end(extents["cls"])
                yield FoundSample(sample.key, extents)

    def _without_line_end(self, label: Extent) -> Extent:
        self._file.seek(label.offset)
        end = self._file.read(label.size_bytes)[-_LINE_END_BYTES:]
        return Extent(label.offset, label.size_bytes - len(end) + len(end.rstrip()))

    def _check_adopted_size(self, member: TarMember, entry: Entry, rows: IndexRows) -> None:
        # A label may leave out the line end of its member.
        if entry.extent.size_bytes > member.size_bytes:
            what = (
                f"{member.path} has {member.size_bytes} bytes at byte {member.offset}, the index "
                f"says {entry.extent.size_bytes}"
            )
            where = f"{self._tar}: key {rows.key(entry.row)}"
            self._wrong("the index disagrees with the tar", where, what)

    def _rest(self, is_damaged: bool) -> Iterator[FoundSample]:
        """Handle entries without a member: samples behind a damaged header, else problems."""
        if self._rows is None:
            return
        for row, of_row in groupby(self._rows.not_met(), lambda entry: entry.row):
            where = f"{self._tar}: key {self._rows.key(row)}"
            entries = list(of_row)
            end = max(entry.extent.offset + entry.extent.size_bytes for entry in entries)
            if end > self._tar_bytes:
                what = f"it ends at byte {end}, the tar at {self._tar_bytes}"
                self._wrong("a sample is cut off", where, what)
            elif is_damaged and row > self._row_done:
                yield FoundSample(self._rows.key(row), self._rows.extents(row))
            else:
                names = " and ".join(f"{e.name} at byte {e.extent.offset}" for e in entries)
                what = f"the index says {names}, where no member begins"
                self._wrong("the index disagrees with the tar", where, what)

    def _members(self) -> Iterator[TarMember]:
        try:
            yield from tar_members(self._file)
        except RecursionError:  # tarfile calls itself for each header that announces a long name
            raise DamagedTar("it has a damaged header: thousands announce one name") from None

    def _plainly_headed(self, member: TarMember) -> TarMember:
        """Find deviations from plain ustar that tarfile accepts."""
        where = f"{self._tar}: {member.path}"
        header = member.offset - tarfile.BLOCKSIZE
        if header != self._end_of_last:
            self._wrong("more than plain ustar", where, "an extended header comes before it")
        self._file.seek(header + _USTAR_AT)
        if self._file.read(len(_USTAR)) != _USTAR:
            self._wrong("more than plain ustar", where, "its header is of another tar format")
        size_bytes = member.size_bytes if member.kind is Kind.FILE else 0
        self._end_of_last = member.offset + -(-size_bytes // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        return member

    def _stray(self, member: TarMember) -> None:
        what = f"it is {member.kind.value} that belongs to no sample"
        self._wrong("something else in the tar", f"{self._tar}: {member.path}", what)

    def _wrong(self, kind: str, where: str, what: str) -> None:
        self._findings.wrong(INDEX, kind, where, what)


def _extent(member: TarMember) -> Extent:
    return Extent(member.offset, member.size_bytes)
