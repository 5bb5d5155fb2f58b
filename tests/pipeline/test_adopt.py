"""Tars of others are adopted only if all readers take them alike; all else is named and refused."""

import bz2
import gzip
import importlib
import io
import itertools
import json
import lzma
import multiprocessing
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from accelssl.errors import UserError
from accelssl.pipeline.adopt import index_shards
from accelssl.pipeline.adopting.adopted_set import split_of
from accelssl.pipeline.adopting.webdataset_names import why_taken_otherwise
from accelssl.pipeline.manifest import read_manifest
from accelssl.pipeline.shards import open_shards
from accelssl.pipeline.storage.folder import Folder
from accelssl.pipeline.tars.tar_samples import key_and_extension

Member = tuple[str, bytes]
Sample = tuple[bytes, int]


def jpeg(seed: int, mode: str = "RGB", form: str = "JPEG", **options: Any) -> bytes:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    size = 40 + seed % 23, 40  # every remainder of a tar block
    picture = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode)
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def samples(count: int, first: int = 0) -> list[Sample]:
    return [(jpeg(n), n % 3) for n in range(first, first + count)]


def plain(pairs: Iterable[Sample], name: str = "{:04d}") -> list[Member]:
    return [
        (f"{name.format(n)}.{extension}", data)
        for n, (image, label) in enumerate(pairs)
        for extension, data in (("jpg", image), ("cls", str(label).encode()))
    ]


def pack(path: Path, members: Sequence[Member], form: int = tarfile.USTAR_FORMAT) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form, errors="surrogateescape") as tar:
        for name, data in members:
            header = tarfile.TarInfo(name.rstrip("/"))
            header.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            header.size = len(data)
            tar.addfile(header, io.BytesIO(data))


def read_by_accelssl(root: Path, split: str = "train") -> list[Sample]:
    opened = open_shards(root).split(split)
    return [opened.read(i) for i in range(len(opened))]


def webdataset_samples(*tars: str | Path) -> list[dict[str, Any]]:
    webdataset: Any = importlib.import_module("webdataset")
    dataset = webdataset.WebDataset(list(map(str, tars)), shardshuffle=False, empty_check=False)
    return [dict(sample) for sample in dataset]


def read_by_webdataset(root: Path, split: str = "train") -> list[Sample]:
    found = webdataset_samples(*open_shards(root).split(split).tars)
    return [(s.get("jpg") or s["jpeg"], int(s["cls"])) for s in found]


def dali_reader(tars: Sequence[str], indexes: Sequence[str], **options: Any) -> Any:
    dali: Any = pytest.importorskip("nvidia.dali")
    pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    if indexes:
        options["index_paths"] = list(indexes)
    with pipeline:
        pipeline.set_outputs(
            *dali.fn.readers.webdataset(
                paths=list(tars),
                missing_component_behavior="error",
                **options,
            )
        )
    pipeline.build()
    return pipeline


def read_by_dali(root: Path, split: str = "train", **options: Any) -> list[Sample]:
    opened = open_shards(root).split(split)
    indexes = [tar.removesuffix(".tar") + ".idx" for tar in opened.tars]
    pipeline = dali_reader(opened.tars, indexes, ext=["jpg", "cls"], **options)
    read = []
    for _ in range(len(opened)):
        image, label = (np.asarray(output[0]).tobytes() for output in pipeline.run())
        read.append((image, int(label)))
    return read


def read_by_tarfile(root: Path, split: str = "train") -> list[Sample]:
    """Images and labels in their own order, each matched by the path up to the extension."""
    read = []
    for path in open_shards(root).split(split).tars:
        images, labels = dict[str, bytes](), dict[str, bytes]()
        with tarfile.open(path) as tar:
            for member in tar:
                stem, _, extension = member.name.rpartition(".")
                of_kind = {"jpg": images, "jpeg": images, "cls": labels}.get(extension.lower())
                is_whole_stem = "." not in Path(stem).name
                if member.isfile() and of_kind is not None and is_whole_stem:
                    content = tar.extractfile(member)
                    assert content is not None
                    of_kind[stem] = content.read()
        assert sorted(images) == sorted(labels)
        read += [(image, int(labels[stem])) for stem, image in images.items()]
    return read


def assert_all_read(root: Path, expected: list[Sample]) -> None:
    assert read_by_accelssl(root) == expected
    assert read_by_tarfile(root) == expected
    assert read_by_webdataset(root) == expected
    assert read_by_dali(root) == expected
    assert read_by_dali(root, dont_use_mmap=True) == expected


TRUTH = samples(7)
LONG, VERY_LONG = "d" * 90 + "/" + "f" * 90, "/".join(["long" * 20] * 5)
IMAGES = [image for image, _ in TRUTH]
LABELS = [str(label).encode() for _, label in TRUTH]


def each(*of_sample: Callable[[int], Member]) -> list[Member]:
    return [make(n) for n in range(len(TRUTH)) for make in of_sample]


ADOPTED: dict[str, tuple[list[Member], tuple[int, ...]]] = {
    "plain": (plain(TRUTH), (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)),
    "long names": (
        plain(TRUTH, LONG + "{}"),
        (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT),
    ),
    "very long names": (
        plain(TRUTH, VERY_LONG + "/{}"),
        (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT),
    ),
    "names that are not ASCII": (
        plain(TRUTH, "été/Пример 例 {}"),
        (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT),
    ),
    "names that are not text": (plain(TRUTH, "caf\udce9{}"), (tarfile.GNU_FORMAT,)),
    "folders with dots": (plain(TRUTH, "train.v1/a.b/{}"), (tarfile.USTAR_FORMAT,)),
    "a leading ./": (plain(TRUTH, "./{}"), (tarfile.USTAR_FORMAT,)),
    "names with blanks": (plain(TRUTH, "a b/\tc  d\n{}"), (tarfile.USTAR_FORMAT,)),
    "upper case": (
        each(lambda n: (f"{n}.JPEG", IMAGES[n]), lambda n: (f"{n}.Cls", LABELS[n])),
        (tarfile.USTAR_FORMAT,),
    ),
    "label first": (
        each(lambda n: (f"{n}.cls", LABELS[n]), lambda n: (f"{n}.jpeg", IMAGES[n])),
        (tarfile.USTAR_FORMAT,),
    ),
    "labels that end in blanks": (
        each(lambda n: (f"{n}.jpg", IMAGES[n]), lambda n: (f"{n}.cls", LABELS[n] + b" \t\r\n")),
        (tarfile.USTAR_FORMAT,),
    ),
    "labels with leading zeros": (
        each(lambda n: (f"{n}.jpg", IMAGES[n]), lambda n: (f"{n}.cls", b"00" + LABELS[n])),
        (tarfile.USTAR_FORMAT,),
    ),
    "extra members": (
        each(
            lambda n: (f"{n}.a.txt", b"text"),
            lambda n: (f"{n}.cls", LABELS[n]),
            lambda n: (f"{n}.seg.png", b"any"),
            lambda n: (f"{n}.mask.jpg", b"any"),
            lambda n: (f"{n}.jpg", IMAGES[n]),
            lambda n: (f"{n}.", b""),
        ),
        (tarfile.USTAR_FORMAT,),
    ),
    "members that belong to no sample": (
        each(
            lambda n: ("README", b"text"),
            lambda n: (f"{n}.jpg", IMAGES[n]),
            lambda n: ("folder.d/", b""),
            lambda n: ("._" + f"{n}.jpg", b"any"),
            lambda n: ("a.b/.DS_Store", b"any"),
            lambda n: (f"{n}.cls", LABELS[n]),
        ),
        (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT),
    ),
}


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


COUNT: Iterator[int] = itertools.count()


def with_json(pairs: Iterable[Sample], about: Callable[[int], object]) -> list[Member]:
    return [
        (f"{n}.{extension}", data)
        for n, (image, label) in enumerate(pairs)
        for extension, data in (
            ("json", json.dumps(about(label)).encode()),
            ("jpg", image),
            ("cls", str(label).encode()),
        )
    ]


def test_json_is_indexed_where_every_sample_of_the_set_has_one(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", with_json(TRUTH, lambda label: {"was": label}))
    pack(tmp_path / "b.tar", with_json(TRUTH, lambda label: {"was": label}))
    index_shards(tmp_path, workers=1)
    manifest, _ = read_manifest(Folder(tmp_path))
    assert manifest.components == ("jpg", "cls", "json")
    assert_all_read(tmp_path, TRUTH * 2)
    split = open_shards(tmp_path).split("train")
    pipeline = dali_reader(split.tars, [t[:-4] + ".idx" for t in split.tars], ext=["json", "cls"])
    for _ in range(2 * len(TRUTH)):
        about, label = (np.asarray(output[0]).tobytes() for output in pipeline.run())
        assert json.loads(about) == {"was": int(label)}


@pytest.mark.parametrize("lacks", ["a tar", "a sample"])
def test_json_is_left_out_where_a_sample_of_the_set_has_none(tmp_path: Path, lacks: str) -> None:
    members = with_json(TRUTH, lambda label: {"wnid": f"n{label}"})
    pack(tmp_path / "a.tar", members)
    pack(tmp_path / "b.tar", plain(TRUTH) if lacks == "a tar" else members[:-3] + members[-2:])
    report = index_shards(tmp_path, workers=1)
    manifest, _ = read_manifest(Folder(tmp_path))
    assert manifest.components == ("jpg", "cls")
    assert manifest.classes == ("0", "1", "2")
    assert "not every sample has a JSON, so none is used: a.tar" in str(report)
    assert b"json" not in (tmp_path / "a.idx").read_bytes()
    assert_all_read(tmp_path, TRUTH * 2)


def classes_of(root: Path, **options: Any) -> tuple[str, ...]:
    index_shards(root, workers=1, **options)
    return open_shards(root).classes


def test_class_names_come_from_the_json_where_they_go_together_with_labels(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", with_json(TRUTH[:4], lambda label: {"wnid": f"n{9 - label}"}))
    pack(tmp_path / "b.tar", with_json(TRUTH[4:], lambda label: {"wnid": f"n{9 - label}"}))
    assert classes_of(tmp_path) == ("n9", "n8", "n7")


@pytest.mark.parametrize(
    "about",
    [
        lambda label: {"wnid": "same"},
        lambda label: {"wnid": str(next(COUNT))},
        lambda label: {"wnid": label},
        lambda label: {"wnid": ""},
        lambda label: {"wnid": f"\udce9{label}"},
        lambda label: {"name": "other"},
        lambda label: ["wnid"],
        lambda label: {"wnid": "n2"} if label == 2 else {},
    ],
)
def test_class_names_are_numbers_where_the_json_does_not_tell(
    tmp_path: Path, about: Callable[[int], object]
) -> None:
    pack(tmp_path / "a.tar", with_json(TRUTH, about))
    assert classes_of(tmp_path) == ("0", "1", "2")


def test_class_names_are_numbers_where_tars_name_a_label_differently(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", with_json(TRUTH, lambda label: {"wnid": f"a{label}"}))
    pack(tmp_path / "b.tar", with_json(TRUTH, lambda label: {"wnid": f"b{label}"}))
    assert classes_of(tmp_path) == ("0", "1", "2")


def test_broken_json_is_no_reason_to_refuse(tmp_path: Path) -> None:
    members = [m for n, pair in enumerate(TRUTH) for m in plain([pair], f"{n}" + "{}")]
    for n in range(len(TRUTH)):
        members.insert(
            3 * n + 2, (members[3 * n][0][:-3] + "json", (b"", b"{", b"[" * 9999)[n % 3])
        )
    pack(tmp_path / "a.tar", members)
    assert classes_of(tmp_path) == ("0", "1", "2")
    assert_all_read(tmp_path, TRUTH)


def test_given_class_names_win_and_those_without_samples_are_told(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", with_json(TRUTH, lambda label: {"wnid": f"n{label}"}))
    report = index_shards(tmp_path, classes=["x", "y", "z", "none"], workers=1)
    assert open_shards(tmp_path).classes == ("x", "y", "z", "none")
    assert "1 labels have no sample: 3" in str(report)


@pytest.mark.parametrize(
    ("classes", "said"), [([], "there are none"), (["a", "b", "a"], "'a' is there twice")]
)
def test_class_names_that_do_not_fit_are_an_error(
    tmp_path: Path, classes: list[str], said: str
) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    with pytest.raises(UserError, match=said):
        index_shards(tmp_path, classes=classes, workers=1)
    assert os.listdir(tmp_path) == ["a.tar"]  # noqa: PTH208


def test_a_word_in_its_name_puts_a_tar_into_a_split(tmp_path: Path) -> None:
    split_of_name = {
        "imagenet1k-train-0001": "train",
        "imagenet1k-validation-00": "val",
        "val2017_3": "val",
        "in.val.0": "val",
        "VAL-7": "val",
        "data_valid": "val",
        "invalid": "train",
        "test-1": "test",
        "cifar_test": "test",
        "trainval": "train",
        "evaluation-0": "train",
        "latest": "train",
        "interval": "train",
        "0001": "train",
    }
    assert {name: split_of(name) for name in split_of_name} == split_of_name
    for n, name in enumerate(split_of_name):
        pack(tmp_path / f"{name}.tar", plain(samples(1, first=n)))
    report = index_shards(tmp_path, workers=1)
    opened = open_shards(tmp_path)
    assert sorted(opened.splits) == ["test", "train", "val"]
    for split in opened.splits:
        names = sorted(name for name, its in split_of_name.items() if its == split)
        assert [Path(tar).stem for tar in opened.split(split).tars] == [
            Path(f"{name}.tar").stem for name in names
        ]
        assert (report.splits[split].tars, report.splits[split].samples) == (len(names),) * 2


def test_tars_are_in_the_order_of_their_characters(tmp_path: Path) -> None:
    for n, name in enumerate(("a-10", "a-9", "B-1", "a_1")):
        pack(tmp_path / f"{name}.tar", plain(samples(1, first=n)))
    index_shards(tmp_path, workers=1)
    assert [Path(tar).stem for tar in open_shards(tmp_path).split("train").tars] == [
        "B-1",
        "a-10",
        "a-9",
        "a_1",
    ]


# What is refused: members, reason, first place, count; all but the members as in the report.
BAD: dict[str, tuple[list[Member], str, str, int]] = {
    "dotted keys": (
        plain(TRUTH, "img.v2.{:04d}"),
        "a key has a dot in it",
        "img.v2.0000.jpg",
        14,
    ),
    "a dotted pair beside a plain one": (
        [*plain(TRUTH), ("0006.b.jpg", IMAGES[0]), ("0006.b.cls", b"1")],
        "a key has a dot in it",
        "0006.b.jpg",
        2,
    ),
    "all images first": (
        plain(TRUTH)[::2] + plain(TRUTH)[1::2],
        "the members of a sample are apart from each other",
        "0000.cls",
        7,
    ),
    "extras at the end": (
        [*plain(TRUTH), ("0001.txt", b""), ("0002.txt", b"")],
        "the members of a sample are apart from each other",
        "0001.txt",
        2,
    ),
    "a key twice": (
        [*plain(TRUTH), *plain(TRUTH[:2])],
        "two samples have the same key",
        "0000.jpg",
        2,
    ),
    "a name twice": (
        [*plain(TRUTH[:1]), *plain(TRUTH[:1])],
        "a sample has two members of the same name",
        "0000.jpg",
        1,
    ),
    "a name twice but for case": (
        [*plain(TRUTH), ("0006.JPG", IMAGES[0])],
        "a sample has two members of the same name",
        "0006.JPG",
        1,
    ),
    "two images": (
        [*plain(TRUTH), ("0006.jpeg", IMAGES[0])],
        "a sample has two images",
        "0006.jpeg",
        1,
    ),
    "no label": (
        [*plain(TRUTH), ("x.jpg", IMAGES[0]), ("y.jpg", IMAGES[1])],
        "a sample has no label (.cls)",
        "x.jpg",
        2,
    ),
    "no image": (
        [("x.cls", b"0"), ("x.png", jpeg(0, form="PNG")), *plain(TRUTH)],
        "a sample has no image (.jpg, .jpeg)",
        "x.cls",
        1,
    ),
    "neither": (
        [("LICENSE.txt", b""), *plain(TRUTH)],
        "a sample has no image (.jpg, .jpeg) and no label (.cls)",
        "LICENSE.txt",
        1,
    ),
    "an empty image": (
        [*plain(TRUTH), ("x.jpg", b""), ("x.cls", b"0")],
        "an image is an empty file",
        "x.jpg",
        1,
    ),
    "PNG": (
        [*plain(TRUTH), *plain([(jpeg(0, form="PNG"), 0)] * 2, "png{}")],
        "an image is no plain upright JPEG (not a JPEG)",
        "png0.jpg",
        2,
    ),
    "names that webdataset passes over": (
        plain(TRUTH, "__data__/{}"),
        "webdataset passes over names like this",
        "__data__/0.jpg",
        7,
    ),
}
BAD |= {
    f"the label {text!r}": (
        [*plain(TRUTH), ("x.jpg", IMAGES[0]), ("x.cls", text)],
        "a label is not a whole number in digits alone",
        f"x.cls holds {text[:32]!r}",
        1,
    )
    for text in (b"", b"cat", b"-1", b"+1", b"1.0", b"1_0", b" 1", b"1\0", "٣".encode(), b"1" * 33)
}


@pytest.mark.parametrize("name", BAD)
def test_a_tar_that_readers_take_differently_is_refused_by_name(tmp_path: Path, name: str) -> None:
    members, reason, first, count = BAD[name]
    pack(tmp_path / "bad.tar", members)
    pack(tmp_path / "good.tar", plain(TRUTH))
    (tmp_path / "bad.idx").write_bytes(b"theirs")
    report = index_shards(tmp_path, workers=1)
    assert {
        tar: [(f.what, f.first, f.count) for f in found] for tar, found in report.refused.items()
    } == {"bad.tar": [(reason, first, count)]}
    more = f" and {count - 1} more" if count > 1 else ""
    assert f"bad.tar: {reason}: {first}{more}\n" in str(report)
    assert not report.is_a_set
    assert sorted(os.listdir(tmp_path)) == ["bad.idx", "bad.tar", "good.tar"]  # noqa: PTH208
    assert (tmp_path / "bad.idx").read_bytes() == b"theirs"


def refusal(root: Path, **options: Any) -> str:
    """What is said of the one tar that is refused; nothing may be left behind."""
    before = sorted(root.iterdir())
    report = index_shards(root, workers=1, **options)
    assert sorted(root.iterdir()) == before
    (found,) = report.refused.values()
    return "; ".join(map(str, found))


@pytest.mark.parametrize("name", ["dotted keys", "all images first", "a key twice"])
def test_webdataset_makes_other_samples_of_what_is_refused(tmp_path: Path, name: str) -> None:
    pack(tmp_path / "a.tar", BAD[name][0])
    found = webdataset_samples(tmp_path / "a.tar")
    if name == "a key twice":
        keys = [sample["__key__"] for sample in found]
        assert len(keys) == 9
        assert len(set(keys)) == 7
    else:
        whole = [sample for sample in found if {"jpg", "cls"} <= sample.keys()]
        assert (len(found), whole) == ({"dotted keys": 1, "all images first": 14}[name], [])


@pytest.mark.parametrize("name", ["a name twice", "a name twice but for case"])
def test_webdataset_fails_at_names_that_are_there_twice(tmp_path: Path, name: str) -> None:
    pack(tmp_path / "a.tar", BAD[name][0])
    with pytest.raises(ValueError, match="duplicate file name"):
        webdataset_samples(tmp_path / "a.tar")


def test_webdataset_reads_nothing_of_what_it_passes_over(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", BAD["names that webdataset passes over"][0])
    assert webdataset_samples(tmp_path / "a.tar") == []


@pytest.mark.parametrize(
    "name", ["dotted keys", "all images first", "extras at the end", "no label", "neither"]
)
def test_dali_by_itself_fails_at_what_is_refused(tmp_path: Path, name: str) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    pack(tmp_path / "b.tar", BAD[name][0])
    dali_reader([str(tmp_path / "a.tar")], [], ext=["jpg", "cls"]).run()
    with pytest.raises(RuntimeError, match="Underful sample"):
        dali_reader([str(tmp_path / "b.tar")], [], ext=["jpg", "cls"])


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("extension", ["jpg", "cls", "json"])
def test_links_are_refused_and_are_nothing_to_webdataset(
    tmp_path: Path, kind: bytes, extension: str
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, data in [*plain(TRUTH[:2]), ("0001.json", b"{}")]:
            header = tarfile.TarInfo(name)
            if name == f"0001.{extension}":
                header.type, header.linkname = kind, f"0000.{extension}"
                tar.addfile(header)
            else:
                header.size = len(data)
                tar.addfile(header, io.BytesIO(data))
    assert refusal(tmp_path) == f"an image, label or JSON is a link: 0001.{extension}"
    assert extension not in webdataset_samples(tmp_path / "a.tar")[1]


@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_sparse_files_are_refused(tmp_path: Path, form: str) -> None:
    content, out = tmp_path / "content", tmp_path / "set"
    content.mkdir()
    out.mkdir()
    with (content / "0.jpg").open("wb") as file:
        file.write(IMAGES[0])
        file.truncate(1 << 20)
    (content / "0.cls").write_bytes(b"0")
    command = ["tar", f"--format={form}", "--sparse", "-cf", str(out / "a.tar")]
    subprocess.run([*command, "-C", str(content), "0.jpg", "0.cls"], check=True)
    assert (out / "a.tar").stat().st_size < 1 << 16
    assert refusal(out) == "an image, label or JSON is a special or sparse file: 0.jpg"


@pytest.mark.parametrize("transform", ["CMYK", "RGB", "cut", "turned"])
def test_images_that_decoders_turn_to_different_pixels_are_refused(
    tmp_path: Path, transform: str
) -> None:
    odd = {
        "CMYK": lambda: jpeg(1, "CMYK"),
        "RGB": lambda: jpeg(1, keep_rgb=True),
        "cut": lambda: jpeg(1)[:-40],
        "turned": lambda: jpeg(
            1, exif=b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6" + bytes(7)
        ),
    }[transform]()
    pack(tmp_path / "a.tar", plain([*TRUTH, (odd, 1)]))
    said = refusal(tmp_path)
    assert said.startswith("an image is no plain upright JPEG (")
    assert said.endswith("): 0007.jpg")


def test_a_label_outside_the_given_classes_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    assert refusal(tmp_path, classes=["a", "b"]) == (
        "a label is not one of 0 to 1: 0002.cls holds 2 and 1 more"
    )


def test_a_label_that_must_be_something_else_is_refused(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain([*TRUTH, (IMAGES[0], 1_000_000)]))
    assert refusal(tmp_path) == "a label is not one of 0 to 999999: 0007.cls holds 1000000"


@pytest.mark.parametrize(
    ("compress", "program"),
    [(gzip.compress, "gunzip"), (bz2.compress, "bunzip2"), (lzma.compress, "unxz")],
)
def test_compressed_tars_are_refused_and_no_tars_to_dali(
    tmp_path: Path, compress: Callable[[bytes], bytes], program: str
) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    index_shards(tmp_path, workers=1)
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "a.tar").write_bytes(compress((tmp_path / "a.tar").read_bytes()))
    assert refusal(tmp_path) == f"it is compressed: unpack it with {program} first"
    with pytest.raises(RuntimeError):
        dali_reader([str(tmp_path / "a.tar")], [], ext=["jpg", "cls"]).run()


def damaged(whole: bytes, how: str) -> bytes:
    if how == "cut within an image":
        return whole[:3000]
    if how == "cut between members":
        return whole[: whole.index(b"0003.jpg")]
    if how == "a damaged header":
        at = whole.index(b"0003.jpg")
        return whole[:at] + b"X" + whole[at + 1 :]
    if how == "two in one file":
        return whole + whole
    return {"nothing": b"", "zeros": bytes(1024) + b"1", "text": b"no tar at all" * 99}[how]


@pytest.mark.parametrize(
    "how",
    [
        "cut within an image",
        "cut between members",
        "a damaged header",
        "two in one file",
        "nothing",
        "zeros",
        "text",
    ],
)
def test_damaged_tars_are_refused(tmp_path: Path, how: str) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(damaged(whole, how))
    assert refusal(tmp_path).startswith("it is damaged: it ")


@pytest.mark.parametrize("how", ["a damaged header", "two in one file"])
def test_webdataset_loses_samples_of_damaged_tars_without_a_word(tmp_path: Path, how: str) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(damaged(whole, how))
    inside = {"a damaged header": 7, "two in one file": 14}[how]
    assert len(webdataset_samples(tmp_path / "a.tar")) < inside


def test_all_that_is_wrong_with_a_tar_is_said_at_once(tmp_path: Path) -> None:
    members = [*plain(TRUTH), *BAD["PNG"][0][-4:], ("x.jpg", IMAGES[0]), ("y.cls", b"0")]
    pack(tmp_path / "a b.tar", members)
    whole = (tmp_path / "a b.tar").read_bytes()
    (tmp_path / "a b.tar").write_bytes(whole[: whole.index(b"y.cls") + 512 + 512])
    report = index_shards(tmp_path, workers=1)
    assert [found.what for found in report.refused["a b.tar"]] == [
        "its name does not fit",
        "it is damaged",
        "an image is no plain upright JPEG (not a JPEG)",
        "a sample has no label (.cls)",
    ]
    assert "Repair these tars, or move them away." in str(report)


@pytest.mark.parametrize("name", ["a b", "-a", "ä", "a+b", "a:b"])
def test_a_tar_whose_name_does_not_fit_is_to_be_renamed(tmp_path: Path, name: str) -> None:
    pack(tmp_path / f"{name}.tar", plain(TRUTH))
    assert refusal(tmp_path) == (
        "its name does not fit: rename it to letters, digits, _, - and . alone"
    )


@pytest.mark.parametrize("name", ["a", "_a", "0", "train.v1-0_0", "A..b"])
def test_a_tar_whose_name_fits_can_be_opened(tmp_path: Path, name: str) -> None:
    pack(tmp_path / f"{name}.tar", plain(TRUTH))
    index_shards(tmp_path, workers=1)
    assert read_by_accelssl(tmp_path) == TRUTH


def test_a_tar_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").mkdir()
    assert refusal(tmp_path) == "it cannot be read: it is no file"


@pytest.mark.parametrize("members", [[], [("folder/", b"")], [("README", b"")]])
def test_empty_tars_are_left_out_and_named(tmp_path: Path, members: list[Member]) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    pack(tmp_path / "b.tar", members)
    report = index_shards(tmp_path, workers=1)
    assert "left out, as they hold no samples: b.tar" in str(report)
    assert not (tmp_path / "b.idx").exists()
    assert_all_read(tmp_path, TRUTH)


def test_a_folder_of_empty_tars_is_an_error(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", [("README", b"")])
    with pytest.raises(UserError, match=r"hold no samples: a\.tar\."):
        index_shards(tmp_path, workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_a_folder_without_tars_is_an_error_that_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing cannot be read: No such file"):
        index_shards(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file cannot be read: Not a directory"):
        index_shards(tmp_path / "file")
    with pytest.raises(UserError, match=r"has no \.tar files"):
        index_shards(tmp_path)
    for name in ("a.tar.gz", "b.tgz"):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"compressed tars alone: a\.tar\.gz, b\.tgz\. .*gunzip"):
        index_shards(tmp_path)


def test_compressed_tars_beside_plain_ones_are_named(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    for name in ("a.tar.gz", "b.tar.zst", "._a.tar"):
        (tmp_path / name).touch()
    assert index_shards(tmp_path, workers=1).notes == (
        "left out, as they are compressed: b.tar.zst",
    )


@pytest.mark.parametrize("name", ["manifest.json", "unfinished.json"])
def test_a_set_and_a_set_in_the_making_are_refused(tmp_path: Path, name: str) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    (tmp_path / name).write_bytes(b"theirs")
    with pytest.raises(UserError, match=str(tmp_path)) as error:
        index_shards(tmp_path, workers=1)
    assert ("remove" in error.value.remedy) == (name == "manifest.json")
    assert (tmp_path / name).read_bytes() == b"theirs"
    assert not (tmp_path / "a.idx").exists()


def test_an_index_that_differs_is_kept_under_another_name(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    (tmp_path / "a.idx").write_bytes(b"first")
    report = index_shards(tmp_path, workers=1)
    assert "indexes that were there and differed are kept: a.idx.orig" in str(report)
    ours = (tmp_path / "a.idx").read_bytes()
    (tmp_path / "manifest.json").unlink()
    assert index_shards(tmp_path, workers=1).notes == ()
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "a.idx").write_bytes(b"second")
    index_shards(tmp_path, workers=1)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if ".idx" in p.name} == {
        "a.idx": ours,
        "a.idx.orig": b"first",
        "a.idx.orig1": b"second",
    }


def test_dalis_own_index_of_a_plain_tar_is_kept_as_it_is(tmp_path: Path) -> None:
    indexer: Any = pytest.importorskip("wds2idx")
    pack(tmp_path / "a.tar", plain(TRUTH))
    with indexer.IndexCreator(
        str(tmp_path / "a.tar"), str(tmp_path / "a.idx"), verbose=False
    ) as theirs:
        theirs.create_index()
    before = (tmp_path / "a.idx").read_bytes()
    assert index_shards(tmp_path, workers=1).notes == ()
    assert (tmp_path / "a.idx").read_bytes() == before


def test_the_manifest_has_the_checksums_of_the_tars(tmp_path: Path) -> None:
    for name in ("a", "b", "val"):
        pack(tmp_path / f"{name}.tar", ADOPTED["extra members"][0])
        with (tmp_path / f"{name}.tar").open("ab") as file:
            file.write(bytes(512 * len(name) * 5000))  # a long end is still an end
    index_shards(tmp_path, workers=1)
    manifest, _ = read_manifest(Folder(tmp_path))
    assert manifest.seed is None
    assert manifest.options == {"adopted": "webdataset tars"}
    for split in manifest.splits.values():
        for shard in split.shards:
            listed = subprocess.run(
                ["sha256sum", tmp_path / f"{shard.name}.tar", tmp_path / f"{shard.name}.idx"],
                capture_output=True,
                check=True,
                text=True,
            ).stdout.split()[::2]
            assert [shard.tar_sha256, shard.idx_sha256] == listed
            assert shard.tar_bytes == (tmp_path / f"{shard.name}.tar").stat().st_size


def test_several_workers_write_the_same_set_and_count_every_byte(tmp_path: Path) -> None:
    for n in range(7):
        pack(tmp_path / "one" / f"{n}.tar", plain(samples(5, first=5 * n)))
    (tmp_path / "one" / "val.tar").write_bytes((tmp_path / "one" / "0.tar").read_bytes())
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    total_bytes = sum(tar.stat().st_size for tar in (tmp_path / "one").iterdir())
    for folder, workers in (("one", 1), ("two", 2)):
        seen: list[tuple[int, int]] = []
        index_shards(
            tmp_path / folder, workers=workers, progress=lambda *at, seen=seen: seen.append(at)
        )
        assert seen == sorted(seen)
        assert seen[-1] == (total_bytes, total_bytes)
    contents = [
        {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
        for folder in ("one", "two")
    ]
    assert contents[0] == contents[1]


def test_an_interrupted_job_leaves_no_manifest_and_the_next_one_succeeds(tmp_path: Path) -> None:
    for n in range(3):
        pack(tmp_path / f"{n}.tar", plain(samples(5, first=5 * n)))

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    for workers in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            index_shards(tmp_path, workers=workers, progress=stop)
        assert sorted(os.listdir(tmp_path)) == ["0.tar", "1.tar", "2.tar"]  # noqa: PTH208
    (tmp_path / "0.idx.part").write_bytes(b"of a job that was killed")
    index_shards(tmp_path, workers=1)
    assert read_by_accelssl(tmp_path) == samples(15)


def test_a_killed_worker_is_a_user_error_and_leaves_no_manifest(tmp_path: Path) -> None:
    for n in range(40):
        pack(tmp_path / f"{n}.tar", plain(samples(1, first=n)))

    def kill(done: int, total: int) -> None:
        for child in multiprocessing.active_children():
            child.kill()

    with pytest.raises(UserError, match=r"killed .* fewer workers"):
        index_shards(tmp_path, workers=2, progress=kill)
    assert {path.suffix for path in tmp_path.iterdir()} == {".tar"}


@pytest.mark.parametrize("workers", [1, 2])
def test_an_index_that_cannot_be_written_is_a_user_error(tmp_path: Path, workers: int) -> None:
    for name in ("a", "b"):
        pack(tmp_path / f"{name}.tar", plain(TRUTH))
    (tmp_path / "a.idx.part").mkdir()
    with pytest.raises(UserError, match=r"a\.idx\.part cannot be read or written"):
        index_shards(tmp_path, workers=workers)


def test_fewer_than_one_worker_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="workers is 0"):
        index_shards(tmp_path, workers=0)


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ("f/._0001.jpg", "webdataset takes a hidden file in a folder for a sample"),
        ("f/.x", "webdataset takes a hidden file in a folder for a sample"),
        ("v1.0/f/.x", "webdataset takes a hidden file in a folder for a sample"),
        ("f/0000.__bad__", "webdataset keeps extensions like this for itself"),
        ("f/0000.__KEY__", "webdataset keeps extensions like this for itself"),
        ("f/0000.__url__", "webdataset keeps extensions like this for itself"),
        ("f/0000.__local_path__", "webdataset keeps extensions like this for itself"),
    ],
)
def test_a_member_that_upsets_webdataset_is_refused(
    tmp_path: Path, extra: str, reason: str
) -> None:
    members = plain(TRUTH, "f/{:04d}")
    members.insert(1, (extra, b"any"))
    pack(tmp_path / "a.tar", members)
    assert f"{reason}: {extra}" in refusal(tmp_path)


def test_hidden_images_and_labels_in_folders_are_refused_and_samples_to_webdataset(
    tmp_path: Path,
) -> None:
    pack(tmp_path / "a.tar", [("a/.jpg", IMAGES[0]), ("a/.cls", b"0"), *plain(TRUTH)])
    assert "a hidden file in a folder for a sample: a/.jpg and 1 more" in refusal(tmp_path)
    assert len(webdataset_samples(tmp_path / "a.tar")) == len(TRUTH) + 1


def test_names_with_a_line_end_and_a_dot_are_refused_and_nothing_to_webdataset(
    tmp_path: Path,
) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH, "v1.0\nx/{}"))
    reason = "webdataset passes over names with a dot and a line end in their folders"
    assert refusal(tmp_path) == f"{reason}: v1.0\nx/0.jpg and 13 more"
    assert webdataset_samples(tmp_path / "a.tar") == []


def test_what_webdataset_takes_otherwise_is_told_of_all_short_names() -> None:
    iterators: Any = importlib.import_module("webdataset.tariterators")
    for length in range(1, 8):
        for letters in itertools.product("a./\n", repeat=length):
            path = "".join(letters)
            ours = key_and_extension(path) or (None, None)
            is_otherwise = iterators.base_plus_ext(path) != ours
            assert (why_taken_otherwise(path) is not None) == is_otherwise, repr(path)


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a link to nothing"])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_called_tar_and_is_no_file_is_refused(
    tmp_path: Path, kind: str, workers: int
) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    make_other(tmp_path / "b.tar", kind)
    report = index_shards(tmp_path, workers=workers)
    assert list(report.refused) == ["b.tar"]
    reason = "No such file or directory" if kind == "a link to nothing" else "it is no file"
    assert str(report.refused["b.tar"][0]) == f"it cannot be read: {reason}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.tar"]


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a link to nothing"])
def test_what_is_in_the_place_of_an_index_and_is_no_file_is_refused(
    tmp_path: Path, kind: str
) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    make_other(tmp_path / "a.idx", kind)
    with pytest.raises(UserError, match=r"a\.idx is no file"):
        index_shards(tmp_path, workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.idx", "a.tar"]


def make_other(path: Path, kind: str) -> None:
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")


def test_a_folder_is_indexed_by_one_process_at_a_time(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", plain(TRUTH))
    seen: list[str] = []

    def on_progress(done_bytes: int, total_bytes: int) -> None:
        with pytest.raises(UserError, match="Another process is indexing") as error:
            index_shards(tmp_path, workers=1)
        seen.append(str(error.value))

    assert index_shards(tmp_path, workers=1, progress=on_progress).is_a_set
    assert seen and str(tmp_path) in seen[0]
    assert read_by_accelssl(tmp_path) == TRUTH
    # The lock is gone with the call, whatever its end.
    with pytest.raises(UserError, match="already is a shard set"):
        index_shards(tmp_path, workers=1)
    (tmp_path / "manifest.json").unlink()
    assert index_shards(tmp_path, workers=1).is_a_set
