"""Walking tars: places are exact, and nothing that is cut or damaged passes for whole."""

import io
import os
import random
import struct
import subprocess
import tarfile
import tracemalloc
from itertools import islice
from pathlib import Path

import pytest

from accelssl.shards.tars.tar_members import DamagedTar, Kind, TarMember, tar_members

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
BLOCK = 512

Files = list[tuple[str, bytes]]


def content(seed: int, size_bytes: int) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def packed(files: Files, form: int = tarfile.USTAR_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def members(archive: bytes) -> list[TarMember]:
    return list(tar_members(io.BytesIO(archive)))


def files_in(archive: bytes) -> Files:
    return [
        (m.path, archive[m.offset : m.offset + m.size_bytes])
        for m in members(archive)
        if m.kind is Kind.FILE
    ]


# Sizes on both sides of a block; the last member fills its blocks.
FILES: Files = [
    (f"n01440764_{i}.JPEG", content(i, size)) for i, size in enumerate([0, 1, 511, 512, 513, 1024])
]


NAMES = ["f", "f" * 99, "f" * 100, "d" * 90 + "/" + "f" * 64, "d" * 155 + "/" + "f" * 100]
LONG_NAMES = ["f" * 101, "d/" * 2500]  # more than ustar takes


@pytest.mark.parametrize(
    ("form", "name"),
    [(form, name) for form in FORMATS for name in NAMES]
    + [(form, name + "f") for form in FORMATS[1:] for name in LONG_NAMES],
)
def test_bytes_and_names_are_those_that_were_packed(form: int, name: str) -> None:
    files = [("before", b"1"), (name, content(7, 700)), ("after", b"23")]
    assert files_in(packed(files, form)) == files


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax", "v7"])
def test_what_the_tar_program_packs_is_found_as_it_lists_it(form: str, tmp_path: Path) -> None:
    long = "" if form in ("ustar", "v7") else "x" * 150
    files = {
        f"./a/one{long}.jpg": content(1, 3000),
        "./a/two words.jpg": content(2, 512),
        "./ünï.jpg": b"",
    }
    for path, data in files.items():
        (tmp_path / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / path).write_bytes(data)
    tar = tmp_path / "a.tar"
    subprocess.run(["tar", f"--format={form}", "-C", tmp_path / "in", "-cf", tar, "."], check=True)
    listed = subprocess.run(
        ["tar", "--quoting-style=literal", "-tf", tar], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    found = members(tar.read_bytes())
    assert [m.path for m in found] == [line.rstrip("/") for line in listed]
    assert dict(files_in(tar.read_bytes())) == files
    assert {m.path for m in found if m.kind is Kind.FOLDER} == {".", "./a"}


def test_names_that_are_no_text_keep_their_bytes() -> None:
    name = os.fsdecode(b"\xff\xfe.jpg")
    assert [m.path for m in members(packed([(name, b"x")]))] == [name]


def test_links_and_special_files_are_told_from_files() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind in [
            ("hard", tarfile.LNKTYPE),
            ("soft", tarfile.SYMTYPE),
            ("pipe", tarfile.FIFOTYPE),
            ("device", tarfile.CHRTYPE),
            ("folder", tarfile.DIRTYPE),
            ("file", tarfile.REGTYPE),
            ("old file", tarfile.AREGTYPE),
        ]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "file"
            tar.addfile(member)
    assert {m.path: m.kind for m in members(buffer.getvalue())} == {
        "hard": Kind.LINK,
        "soft": Kind.LINK,
        "pipe": Kind.OTHER,
        "device": Kind.OTHER,
        "folder": Kind.FOLDER,
        "file": Kind.FILE,
        "old file": Kind.FILE,
    }


SPARSE = [
    ["--format=gnu"],
    *(["--format=pax", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0")),
]


def sparse_tar(tmp_path: Path, options: list[str]) -> bytes:
    with (tmp_path / "holes.jpg").open("wb") as file:
        file.seek(150_000)
        file.write(b"x")
        file.truncate(300_000)
    (tmp_path / "whole.jpg").write_bytes(b"hello")
    tar = tmp_path / "sparse.tar"
    names = ["holes.jpg", "whole.jpg"]
    subprocess.run(["tar", "-S", *options, "-C", tmp_path, "-cf", tar, *names], check=True)
    if tar.stat().st_size > 300_000:
        pytest.skip("this file system keeps no holes")
    return tar.read_bytes()


@pytest.mark.parametrize("options", SPARSE)
def test_a_sparse_file_is_no_file_to_be_read_in_place(tmp_path: Path, options: list[str]) -> None:
    archive = sparse_tar(tmp_path, options)
    assert [(m.path, m.kind) for m in members(archive)] == [
        ("holes.jpg", Kind.OTHER),
        ("whole.jpg", Kind.FILE),
    ]
    assert files_in(archive) == [("whole.jpg", b"hello")]


def test_a_part_of_a_file_is_an_archive_of_its_own() -> None:
    inner = packed(FILES)
    outer = packed([("first.tar", inner), ("second.tar", packed([("x", b"y")])), ("z", b"z")])
    file = io.BytesIO(outer)
    first = members(outer)[0]
    # Interleaved on one file, as a walk through nested archives is.
    found = []
    for member in tar_members(file):
        if member.path.endswith(".tar"):
            part = tar_members(file, start=member.offset, size_bytes=member.size_bytes)
            found += [(m.path, outer[m.offset : m.offset + m.size_bytes]) for m in part]
    assert found == [*FILES, ("x", b"y")]
    with pytest.raises(DamagedTar):  # must not run on into what follows the part
        list(tar_members(file, start=first.offset, size_bytes=len(inner) - 10240))


@pytest.mark.parametrize("form", FORMATS)
def test_a_cut_archive_is_never_taken_for_whole(form: int) -> None:
    files = [*FILES, ("long" * 20 + "/" + "name" * 20, b"12345"), ("last", content(9, 512))]
    archive = packed(files, form)
    last = members(archive)[-1]
    end = last.offset + last.size_bytes  # the last member fills its block
    assert not any(archive[end:])
    for length in [*range(0, end + 1, 64), *range(BLOCK - 1, end, BLOCK), end - 1, end, end + 511]:
        with pytest.raises(DamagedTar):
            members(archive[:length])
    assert files_in(archive[: end + BLOCK]) == files  # an end mark of one block will do


@pytest.mark.parametrize("form", FORMATS)
def test_a_bit_flipped_in_a_header_is_noticed(form: int) -> None:
    archive = packed(FILES, form)
    draw = random.Random(1)
    for member in members(archive):
        for _ in range(40):
            damaged = bytearray(archive)
            # The reserved 12 bytes at the end are in the checksum too.
            damaged[member.offset - BLOCK + draw.randrange(BLOCK)] ^= 1 << draw.randrange(8)
            try:
                found = members(bytes(damaged))
            except DamagedTar:
                continue
            # Bits that mean nothing: a space for a zero byte that ends the checksum, and the like.
            assert found == members(archive)


def test_a_damaged_header_in_the_middle_is_named_by_its_place() -> None:
    archive = bytearray(packed(FILES))
    place = members(bytes(archive))[3].offset - BLOCK
    archive[place : place + 10] = b"\xaa" * 10
    with pytest.raises(DamagedTar, match=f"damaged header at byte {place}"):
        members(bytes(archive))


def test_zeros_over_a_header_are_not_the_end() -> None:
    archive = bytearray(packed(FILES))
    place = members(bytes(archive))[3].offset - BLOCK
    archive[place : place + 2 * BLOCK] = bytes(2 * BLOCK)
    with pytest.raises(DamagedTar, match=f"after the end mark at byte {place}"):
        members(bytes(archive))


def test_concatenated_archives_are_refused_and_not_read_by_half() -> None:
    with pytest.raises(DamagedTar, match="concatenated"):
        members(packed(FILES) + packed([("more", b"x")]))


def test_a_negative_size_does_not_go_round_in_circles() -> None:
    first = packed([("first", b"1")])[: 2 * BLOCK]
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT))
    # Back over itself to the first header.
    header[124:136] = b"\xff" * 10 + struct.pack(">h", -3 * BLOCK)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    walked = tar_members(io.BytesIO(first + bytes(header) + bytes(10240)))
    with pytest.raises(DamagedTar, match=f"damaged header at byte {2 * BLOCK}"):
        list(islice(walked, 100))


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_thousands_of_headers_for_one_member_are_damage(kind: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, BLOCK
    data = b"x" * (BLOCK - 1) + b"\0" if kind == tarfile.GNUTYPE_LONGNAME else b""
    one = header.tobuf(tarfile.GNU_FORMAT) + data.ljust(BLOCK, b"\0")
    with pytest.raises(DamagedTar, match="recursion"):
        members(one * 5000 + packed(FILES))


@pytest.mark.parametrize("options", SPARSE)
def test_damage_anywhere_is_an_error_of_one_kind(tmp_path: Path, options: list[str]) -> None:
    archive = sparse_tar(tmp_path, options)
    draw = random.Random(2)
    noticed = 0
    for _ in range(800):
        damaged = bytearray(archive)
        damaged[draw.randrange(4096)] = draw.choice(b"0123456789,xA\0-\n ")
        try:
            members(bytes(damaged))
        except DamagedTar:
            noticed += 1
    assert noticed > 50


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\x89PNG" * 1000, b"<html>404</html>" * 100, b"\x1f\x8b\x08" + bytes(2000)]
)
def test_what_is_no_tar_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedTar, match="not a whole uncompressed tar"):
        members(data)


@pytest.mark.parametrize("how", ["gz", "bz2", "xz"])
def test_a_compressed_tar_is_refused(how: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", f"w:{how}") as tar:  # type: ignore[call-overload]
        tar.addfile(tarfile.TarInfo("x"))
    with pytest.raises(DamagedTar):
        members((tmp_path / "a.tar").read_bytes())


def test_an_archive_without_members_is_empty() -> None:
    assert members(packed([])) == []


def test_a_size_beyond_eight_gigabytes_is_read_whole(tmp_path: Path) -> None:
    size_bytes = 9 << 30  # more than the 11 octal digits of ustar
    tar = tmp_path / "great.tar"
    with tar.open("wb") as file:
        member = tarfile.TarInfo("great.bin")
        member.size = size_bytes
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        file.seek(BLOCK + size_bytes)
        file.write(packed([("after", b"here")]))
    if tar.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("this file system keeps no holes")
    with tar.open("rb") as file:
        first, second = tar_members(file)
        assert (first.offset, first.size_bytes) == (BLOCK, size_bytes)
        assert second == TarMember("after", Kind.FILE, size_bytes + 2 * BLOCK, 4)


def test_memory_does_not_grow_with_the_number_of_members() -> None:
    header = tarfile.TarInfo("n01440764_10026.JPEG").tobuf(tarfile.USTAR_FORMAT)
    file = io.BytesIO(header * 30_000 + bytes(2 * BLOCK))
    tracemalloc.start()
    try:
        count = sum(1 for _ in tar_members(file))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 30_000
    assert peak_bytes < 1_000_000  # tarfile keeps 50 MB of headers
