"""Tars as others write them, and what each of four readers takes from them."""

import importlib
import io
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from accelssl.shards import webdataset_of
from accelssl.shards.adopt.adopt import index_shards
from accelssl.shards.shard_set import open_shards

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


def assert_webdataset_of_reads(root: Path, expected: list[Sample]) -> None:
    pictures = [Image.open(io.BytesIO(image)).convert("RGB") for image, _ in expected]
    read = list(webdataset_of(root, "train"))
    assert [label for _, label in read] == [label for _, label in expected]
    assert all(image == picture for (image, _), picture in zip(read, pictures, strict=True))


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
    assert_webdataset_of_reads(root, expected)
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


def refusal(root: Path, **options: Any) -> str:
    """What is said of the one tar that is refused; nothing may be left behind."""
    before = sorted(root.iterdir())
    report = index_shards(root, workers=1, **options)
    assert sorted(root.iterdir()) == before
    (found,) = report.refused.values()
    return "; ".join(map(str, found))
