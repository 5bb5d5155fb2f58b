"""Tars of others are adopted if all readers take them alike."""

import io
import itertools
import subprocess
import tarfile
from pathlib import Path

import pytest

from accelssl.shards.adopt.adopt import index_shards
from tests.shards.adopt.tars_of_others import (
    ADOPTED,
    IMAGES,
    LABELS,
    LONG,
    TRUTH,
    assert_all_read,
    each,
    pack,
    plain,
)


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name, (_, forms) in ADOPTED.items() for form in forms]
)
def test_four_readers_take_an_adopted_tar_alike(tmp_path: Path, name: str, form: int) -> None:
    pack(tmp_path / "a.tar", ADOPTED[name][0], form)
    before = (tmp_path / "a.tar").read_bytes()
    report = index_shards(tmp_path, workers=1)
    assert report.is_a_set
    assert (report.classes, report.splits["train"].samples) == (3, 7)
    assert_all_read(tmp_path, TRUTH)
    assert (tmp_path / "a.tar").read_bytes() == before


@pytest.mark.parametrize(
    ("form", "deep"),
    [
        *itertools.product(("gnu", "posix", "ustar", "v7", "oldgnu"), ("", "./")),
        *itertools.product(("gnu", "posix", "ustar", "oldgnu"), (LONG + "/",)),
    ],
)
def test_tars_of_the_tar_program_are_adopted(tmp_path: Path, form: str, deep: str) -> None:
    content = tmp_path / "content"
    for name, data in plain(TRUTH, deep + "{:04d}"):
        (content / name).parent.mkdir(parents=True, exist_ok=True)
        (content / name).write_bytes(data)
    (tmp_path / "set").mkdir()
    command = ["tar", f"--format={form}", "--sort=name", "-cf", str(tmp_path / "set" / "a.tar")]
    subprocess.run([*command, "-C", str(content), deep.partition("/")[0] or "."], check=True)
    index_shards(tmp_path / "set", workers=1)
    # Within a sample, "cls" comes before "jpg".
    assert_all_read(tmp_path / "set", TRUTH)


def test_global_pax_headers_are_no_members(tmp_path: Path) -> None:
    with tarfile.open(
        tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "é" * 999}
    ) as tar:
        for name, data in plain(TRUTH):
            header = tarfile.TarInfo(name)
            header.size, header.mtime = len(data), 0.5
            tar.addfile(header, io.BytesIO(data))
    assert index_shards(tmp_path, workers=1).skipped == ()
    assert_all_read(tmp_path, TRUTH)


def test_hidden_files_that_webdataset_passes_over_too_are_passed_over(tmp_path: Path) -> None:
    # As macOS packs them; in a folder without a dot webdataset takes them for samples.
    members = each(
        lambda n: (f"./._{n}.cls", b"any"),
        lambda n: (f"./{n}.cls", LABELS[n]),
        lambda n: (f"v1.0/._{n}.jpg", b"any"),
        lambda n: (f"./{n}.jpg", IMAGES[n]),
    )
    pack(tmp_path / "a.tar", members)
    report = index_shards(tmp_path, workers=1)
    assert_all_read(tmp_path, TRUTH)
    assert "not used, 14 hidden files: ./._0.cls in a.tar and 13 more" in str(report)


def test_the_report_says_what_the_set_holds(tmp_path: Path) -> None:
    pack(tmp_path / "a-val.tar", [*plain(TRUTH), ("README", b"")])
    pack(tmp_path / "b-test.tar", plain(TRUTH[:3]))
    assert str(index_shards(tmp_path, workers=1)).splitlines() == [
        f"{tmp_path}: now a shard set of 3 classes",
        "val: 7 samples in 1 tar (0.0 MB)",
        "test: 3 samples in 1 tar (0.0 MB)",
        "not used, 1 files without an extension: README in a-val.tar",
        "no tar is for training: each has val or test in its name",
        "Images and order are as they were; to check them: "
        f"accelssl verify-shards {tmp_path} --full",
    ]


def test_the_report_can_be_printed_whatever_names_hold(tmp_path: Path) -> None:
    bad = [("a\x1b[2J\n\udce9é.jpg", b""), ("a\x1b[2J\n\udce9é.cls", b"0")]
    pack(tmp_path / "a.tar", bad, tarfile.GNU_FORMAT)
    report = index_shards(tmp_path, workers=1)
    assert r"a.tar: an image is an empty file: a\x1b[2J\n\udce9é.jpg" in str(report).splitlines()
    str(report).encode()


def test_what_is_not_used_is_counted_with_an_example(tmp_path: Path) -> None:
    for name in ("a.tar", "b.tar"):
        pack(tmp_path / name, ADOPTED["extra members"][0] + [("LICENSE", b""), ("x/", b"")])
    skipped = {found.what: found for found in index_shards(tmp_path, workers=1).skipped}
    assert {what: (found.first, found.count) for what, found in skipped.items()} == {
        "members of samples other than image, label and JSON": ("0.a.txt in a.tar", 4 * 7 * 2),
        "files without an extension": ("LICENSE in a.tar", 2),
        "folders": ("x in a.tar", 2),
    }


def test_the_same_key_in_two_tars_is_two_samples(tmp_path: Path) -> None:
    pack(tmp_path / "b.tar", plain(TRUTH[:3]))
    pack(tmp_path / "a.tar", plain(TRUTH[3:]))
    index_shards(tmp_path, workers=1)
    assert_all_read(tmp_path, TRUTH[3:] + TRUTH[:3])


def test_the_index_has_no_blanks_in_keys_and_offsets_of_tarfile(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH, "a b\t{}"), tarfile.PAX_FORMAT)
    index_shards(tmp_path, workers=1)
    with tarfile.open(tmp_path / "a.tar") as tar:
        at = {member.name: (member.offset_data, member.size) for member in tar}
    lines = (tmp_path / "a.idx").read_text().splitlines()
    assert lines[0] == "v1.2 7"
    for n, line in enumerate(lines[1:]):
        jpg, cls = at[f"a b\t{n}.jpg"], at[f"a b\t{n}.cls"]
        assert line == f"jpg {jpg[0]} {jpg[1]} a_b_{n}.jpg cls {cls[0]} {cls[1]} a_b_{n}.cls"
