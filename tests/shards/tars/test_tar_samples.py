"""Keys, extensions and samples are those of the webdataset library."""

import importlib
import itertools
from typing import Any

import pytest

from accelssl.shards.tars.tar_members import Kind, TarMember
from accelssl.shards.tars.tar_samples import key_and_extension, tar_samples

BASES = ("a", "a.jpg", "a.b.JPG", "a.", "a..b", "é b.jpg", ".a", ".a.jpg", ".", "..", "a.ß")
FOLDERS = ("", "./", "d/", "d.v1/", "d/e.f/", "/", "a.jpg/")
# webdataset takes the file ".b" in a folder without a dot for a member "b" of a sample "folder/".
HIDDEN_BUT_READ = {
    folder + base for folder, base in itertools.product(("d/", "/"), BASES) if base.startswith(".")
}


@pytest.mark.parametrize("path", ["".join(parts) for parts in itertools.product(FOLDERS, BASES)])
def test_keys_and_extensions_are_those_of_webdataset(path: str) -> None:
    webdataset: Any = importlib.import_module("webdataset.tariterators")
    key, extension = webdataset.base_plus_ext(path)
    if path in HIDDEN_BUT_READ:
        assert key_and_extension(path) is None
        assert key is not None
    else:
        assert key_and_extension(path) == (None if key is None else (key, extension.lower()))


def members(*paths: str) -> list[TarMember]:
    return [
        TarMember(path, Kind.FOLDER if path.endswith("/") else Kind.FILE, 512 * n, n)
        for n, path in enumerate(paths)
    ]


def test_samples_are_runs_of_members_and_what_lies_between_does_not_end_them() -> None:
    found = members("a.jpg", "README", "a.b/", "a.CLS", "b.cls", ".a.jpg", "a.txt", "d/a.txt")
    strays: list[TarMember] = []
    samples = [(s.key, list(s.members)) for s in tar_samples(found, strays.append)]
    assert samples == [
        ("a", [("jpg", found[0]), ("cls", found[3])]),
        ("b", [("cls", found[4])]),
        ("a", [("txt", found[6])]),
        ("d/a", [("txt", found[7])]),
    ]
    assert strays == [found[1], found[2], found[5]]


def no_stray(member: TarMember) -> None:
    raise AssertionError(member)


def test_links_and_special_files_belong_to_samples() -> None:
    link = TarMember("a.jpg", Kind.LINK, 512, 0)
    other = TarMember("a.cls", Kind.OTHER, 1024, 0)
    (sample,) = tar_samples([link, other], no_stray)
    assert sample == ("a", (("jpg", link), ("cls", other)))


def test_no_members_are_no_samples() -> None:
    assert list(tar_samples([], no_stray)) == []
