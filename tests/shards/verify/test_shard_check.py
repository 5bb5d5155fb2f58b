"""The checker of shard sets: faults in the bytes of tars and indexes, each found in its place."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from accelssl.shards.storage.folder import Folder
from accelssl.shards.verify.storage_file import StorageFile
from tests.shards.planted_sets import (
    Members,
    encoded,
    figure,
    flip,
    found,
    outcomes,
    overwrite,
    replace_member,
    sample,
    seal,
    verified,
    write_document,
    write_index,
    write_set,
    write_tar,
)


def locate(tar: Path, member: str) -> tuple[int, int]:
    """The offset and the size of a member's data."""
    with tarfile.open(tar) as archive:
        info = archive.getmember(member)
        return info.offset_data, info.size


# Bytes of tar and index


def test_a_flipped_byte_of_a_picture_is_found_by_the_checksum(clean: Path) -> None:
    offset, size_bytes = locate(clean / "train-000001.tar", "00000024.cls")
    assert size_bytes == 1
    flip(clean / "train-000001.tar", offset + 100)  # padding: no reader would notice
    assert found(verified(clean)) == {
        ("checksums", "other bytes than were written", "train-000001.tar")
    }


def test_a_damaged_header_hides_nothing_that_the_index_still_leads_to(
    clean: Path, content: dict[str, Members]
) -> None:
    replace_member(content["train-000001"], "00000039.cls", b"7")
    write_set(clean, content)
    tar = clean / "train-000001.tar"
    flip(tar, locate(tar, "00000024.jpg")[0] - 512 + 3)
    report = verified(clean)
    assert found(report) == {
        ("checksums", "other bytes than were written", "train-000001.tar"),
        ("index", "the tar is damaged", "train-000001.tar"),
        ("labels", "a label is out of range", "train-000001.tar: key 00000039"),
    }
    assert figure(report, "images") == "56 of 56 decoded"


def test_a_flipped_digit_of_an_index_is_found_by_checksum_and_by_the_tar(clean: Path) -> None:
    index = clean / "train-000001.idx"
    text = index.read_text()
    line = text.splitlines()[4]
    offset = line.split()[5]
    index.write_text(text.replace(f"cls {offset} ", f"cls {int(offset) + 512} "))
    report = verified(clean)
    assert ("checksums", "other bytes than were written", "train-000001.idx") in found(report)
    assert outcomes(report)["index"] == "wrong"
    assert {f[0] for f in found(report)} <= {"checksums", "index"}


@pytest.mark.parametrize("text", [b"", b"garbage", b"v1.2 20\n", b"\xff" * 100])
def test_beside_a_garbage_index_the_tar_is_still_checked(
    clean: Path, content: dict[str, Members], text: bytes
) -> None:
    replace_member(content["train-000001"], "00000025.json", b"{")
    write_set(clean, content)
    (clean / "train-000001.idx").write_bytes(text)
    report = verified(clean)
    assert found(report) == {
        ("files", "an idx has another size", "train-000001.idx"),
        ("checksums", "other bytes than were written", "train-000001.idx"),
        ("index", "the index is unusable", "train-000001.idx"),
        ("labels", "the JSON is damaged", "train-000001.tar: key 00000025"),
    }
    assert figure(report, "images") == "56 of 56 decoded"


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda line: line.replace("00000024", "00000099"), "00000099"),
        (lambda line: line.replace("00000024.cls", "00000025.cls"), "00000025.cls"),
        (lambda line: line.replace(" 1 00000024.cls", " 2 00000024.cls"), "with 2"),
    ],
)
def test_names_and_sizes_of_the_index_must_be_those_of_the_tar(
    clean: Path, edit: Callable[[str], str], what: str
) -> None:
    index = clean / "train-000001.idx"
    lines = index.read_text().split("\n")
    assert "00000024" in lines[5] and edit(lines[5]) != lines[5]
    lines[5] = edit(lines[5])
    index.write_text("\n".join(lines))
    seal(clean)
    report = verified(clean)
    where = "train-000001.tar: key 00000024"
    assert found(report) == {("index", "the index disagrees with the tar", where)}
    assert what in report.problems[0].what


def test_a_sample_that_the_index_leaves_out_is_named(clean: Path) -> None:
    index = clean / "train-000001.idx"
    lines = index.read_text().split("\n")
    del lines[5]
    index.write_text("\n".join(["v1.2 19", *lines[1:]]))
    seal(clean)
    where = "train-000001.tar: key 00000024"
    assert found(verified(clean)) == {("index", "the index disagrees with the tar", where)}


def test_a_truncated_tar_is_checked_up_to_its_end(clean: Path) -> None:
    tar = clean / "train-000001.tar"
    offset, size_bytes = locate(tar, "00000030.jpg")
    os.truncate(tar, offset + size_bytes // 2)
    report = verified(clean)
    assert {f for f in found(report) if f[0] != "index"} == {
        ("files", "a tar has another size", "train-000001.tar"),
        ("checksums", "other bytes than were written", "train-000001.tar"),
    }
    assert ("index", "the tar is damaged", "train-000001.tar") in found(report)
    cut = {f"train-000001.tar: key {key:08d}" for key in range(30, 40)}
    assert {f[2] for f in found(report) if f[1] == "a sample is cut off"} == cut
    assert figure(report, "images") == "46 of 46 decoded"


def test_a_tar_with_something_appended_is_wrong(clean: Path) -> None:
    tar = clean / "val-000000.tar"
    extra = clean / "extra"
    write_tar(extra, sample("00000099", encoded(99), 0, "x.JPEG"))
    with tar.open("ab") as file:
        file.write(extra.read_bytes())
    extra.unlink()
    seal(clean)
    assert found(verified(clean)) == {("index", "the tar is damaged", "val-000000.tar")}


def test_a_sample_appended_before_the_end_mark_is_wrong(clean: Path) -> None:
    with tarfile.open(clean / "val-000000.tar", "a", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in sample("00000099", encoded(99), 0, "x.JPEG"):
            header = tarfile.TarInfo(name)
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))
    seal(clean)
    where = "val-000000.tar: key 00000099"
    assert found(verified(clean)) == {("index", "the index disagrees with the tar", where)}


def test_members_that_are_no_samples_of_ours_are_wrong(
    clean: Path, content: dict[str, Members]
) -> None:
    first = content["val-000000"][:3]
    planted: Members = [
        ("README", b"text"),
        *first[1:],
        first[0],
        ("00000001.txt", b"more"),
        *content["val-000000"][3:6],
        ("Upper-Key.jpg", encoded(1)),
        ("Upper-Key.cls", b"1"),
        ("Upper-Key.json", b'{"wnid": "n02", "name": "upper.JPEG"}'),
    ]
    write_tar(clean / "val-000000.tar", planted)
    seal(clean)
    kinds = {f[1:] for f in found(verified(clean)) if f[1] != "the index disagrees with the tar"}
    tar = "val-000000.tar"
    assert kinds >= {
        ("something else in the tar", f"{tar}: README"),
        ("a sample is not jpg, cls, json", f"{tar}: key {first[0][0][:8]}"),
        ("a sample is not jpg, cls, json", f"{tar}: key 00000001"),
        ("a key is no number of a sample", f"{tar}: key Upper-Key"),
    }


def test_a_link_in_place_of_a_picture_is_wrong(clean: Path, content: dict[str, Members]) -> None:
    tar = clean / "val-000000.tar"
    with tarfile.open(tar, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in content["val-000000"]:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            if name == "00000005.jpg":
                header.type, header.linkname, header.size = tarfile.SYMTYPE, "00000004.jpg", 0
            archive.addfile(header, io.BytesIO(data) if header.size else None)
    seal(clean)
    report = found(verified(clean))
    assert ("index", "something else in the tar", f"{tar.name}: key 00000005") in report


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_other_formats_of_tar_are_wrong(
    clean: Path, content: dict[str, Members], form: int
) -> None:
    tar = clean / "val-000000.tar"
    with tarfile.open(tar, "w", format=form) as archive:
        for name, data in content["val-000000"]:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            header.mtime = 0.5  # PAX writes a header of its own for a part of a second
            archive.addfile(header, io.BytesIO(data))
    write_index(tar)
    seal(clean)
    report = verified(clean)
    assert {f[:2] for f in found(report)} == {("index", "more than plain ustar")}
    assert ("index", "more than plain ustar", f"{tar.name}: 00000000.jpg") in found(report)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Bytes overwritten, cut out, put in, swapped or lost at the end."""
    at, end = sorted(rng.integers(0, len(data) + 1, 2).tolist())
    piece = data[at:end]
    return [
        data[:at] + rng.bytes(1 + int(rng.integers(4))) + data[at + 1 :],
        data[:at] + bytes(len(piece)) + data[end:],
        data[:at] + data[end:],
        data[:at] + piece + piece + data[end:],
        data[end:] + data[:end],
        data[:at],
    ][int(rng.integers(6))]


@pytest.mark.parametrize("name", ["train-000001.tar", "train-000001.idx", "manifest.json"])
def test_whatever_bytes_change_the_set_is_wrong_there(clean: Path, name: str) -> None:
    data = (clean / name).read_bytes()
    for seed in range(25):
        changed = damaged(data, np.random.default_rng(seed))
        (clean / name).write_bytes(changed)
        report = verified(clean)
        assert report.is_right == (changed == data)
        assert changed == data or any(name in finding.where for finding in report.problems)


@pytest.mark.parametrize("name", ["train-000001.tar", "train-000001.idx"])
def test_under_right_checksums_too_no_damage_stops_the_check(clean: Path, name: str) -> None:
    data = (clean / name).read_bytes()
    document = json.loads((clean / "manifest.json").read_bytes())
    for seed in range(25):
        changed = damaged(data, np.random.default_rng(seed))
        (clean / name).write_bytes(changed)
        entry = document["splits"]["train"]["shards"][1]
        entry[f"{name[-3:]}_bytes"] = len(changed)
        entry[f"{name[-3:]}_sha256"] = hashlib.sha256(changed).hexdigest()
        write_document(clean, document)
        report = verified(clean, full=True)
        assert {f[0] for f in found(report)} <= {"index", "labels", "images", "duplicates", "order"}
        assert figure(report, "checksums") == "8 of 8 files compared"
        # The other shards are there in full.
        assert int(figure(report, "images").split()[0]) >= 36


@pytest.mark.parametrize("layout", ["one line", "tabs", "no last line end", "empty lines"])
def test_an_index_that_is_not_a_line_a_sample_is_wrong(clean: Path, layout: str) -> None:
    index = clean / "train-000001.idx"
    text = index.read_text()
    index.write_text(
        {
            "one line": text.replace("\n", " "),
            "tabs": text.replace(" ", "\t"),
            "no last line end": text.rstrip("\n"),
            "empty lines": text.replace("\n", "\n\n"),
        }[layout]
    )
    seal(clean)
    report = verified(clean)
    assert found(report) == {("index", "the index is not a line a sample", index.name)}
    assert figure(report, "images") == "56 of 56 decoded"


def test_headers_that_lead_in_circles_end_the_walk(clean: Path) -> None:
    tar = clean / "val-000000.tar"
    at = locate(tar, "00000005.cls")[0] - 512
    header = bytearray(tar.read_bytes()[at : at + 512])
    # A negative size in base 256, and the checksum that makes the header valid.
    header[124:136] = (-(512 * 4) & ((1 << 96) - 1)).to_bytes(12, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    overwrite(tar, at, bytes(header))
    seal(clean)
    assert ("index", "the tar is damaged", tar.name) in found(verified(clean))


def test_thousands_of_headers_for_one_name_end_the_walk(clean: Path) -> None:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    block = header.tobuf(tarfile.GNU_FORMAT) + b"x".ljust(512, b"\0")
    tar = clean / "val-000000.tar"
    tar.write_bytes(block * 5000 + tar.read_bytes())
    seal(clean)
    assert ("index", "the tar is damaged", tar.name) in found(verified(clean))


@pytest.mark.parametrize("number", ["9" * 30, "9" * 5000, "-512", "1e3", "x"])
def test_numbers_of_an_index_that_make_no_sense_make_it_unusable(clean: Path, number: str) -> None:
    index = clean / "val-000000.idx"
    lines = index.read_text().split("\n")
    words = lines[3].split(" ")
    words[1] = number
    lines[3] = " ".join(words)
    index.write_text("\n".join(lines))
    seal(clean)
    assert found(verified(clean)) == {("index", "the index is unusable", "val-000000.idx")}


def test_a_file_that_reads_ahead_gives_the_bytes_of_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = rng.bytes(10_007)
    (tmp_path / "file").write_bytes(data)
    with (
        StorageFile(Folder(tmp_path), "file", len(data), piece_bytes=512) as raw,
        io.BufferedReader(raw, 100) as file,
    ):
        assert file.read() == data
        for _ in range(500):
            offset, size = int(rng.integers(11_000)), int(rng.integers(2_000))
            file.seek(offset)
            assert file.read(size) == data[offset : offset + size]


def test_a_walk_with_steps_back_reads_each_byte_of_the_storage_once(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    (tmp_path / "file").write_bytes(data)
    reads: list[tuple[int, int]] = []

    class Counted(Folder):
        def read(self, name: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
            assert size_bytes is not None
            reads.append((offset, size_bytes))
            return super().read(name, offset, size_bytes)

    with StorageFile(Counted(tmp_path), "file", len(data), piece_bytes=1000) as file:
        for at in range(0, len(data), 300):
            file.seek(at)
            file.read(100)
            file.seek(max(0, at - 900))
            file.read(10)
    assert sorted(reads) == [(at, min(1000, len(data) - at)) for at in range(0, len(data), 1000)]
