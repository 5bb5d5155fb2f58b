"""The same few images of ImageNet in every packaging they are met in."""

import io
import random
import tarfile
from pathlib import Path

from accelssl.shards.sources.source import Source

# Facts about ImageNet that stand on their own: the classes of its first four validation images.
VAL_CLASS = {1: "n01751748", 2: "n09193705", 3: "n02105855", 4: "n04263257"}
WNIDS = sorted(VAL_CLASS.values())


def content(name: str) -> bytes:
    return random.Random(name).randbytes(300 + len(name))


def train_name(wnid: str, i: int) -> str:
    return f"{wnid}_{7919 * i % 101}.JPEG"


def val_name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


TRAIN = [(wnid, train_name(wnid, i)) for wnid in WNIDS for i in range(5)]
VAL = [(wnid, val_name(number)) for number, wnid in VAL_CLASS.items()]
Row = tuple[int, str, str, bytes]
EXPECTED: dict[str, list[Row]] = {
    split: [(WNIDS.index(wnid), wnid, name, content(name)) for wnid, name in sorted(images)]
    for split, images in (("train", TRAIN), ("val", VAL))
}


def rows(source: Source) -> dict[str, list[Row]]:
    found = {}
    for split in source.splits:
        images = [source.image(split, i) for i in range(source.count(split))]
        found[split] = [(im.label, im.wnid, im.name, im.read()) for im in images]
    return found


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def pack(path: Path, files: dict[str, bytes], form: int = tarfile.GNU_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def shuffled(images: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return random.Random(5).sample(images, len(images))


def of_class(wnid: str) -> dict[str, bytes]:
    return {name: content(name) for w, name in shuffled(TRAIN) if w == wnid}


def with_class(wnid: str, name: str) -> str:
    return name.replace(".JPEG", f"_{wnid}.JPEG")


def hub(images: list[tuple[str, str]]) -> dict[str, bytes]:
    return {with_class(wnid, name): content(name) for wnid, name in shuffled(images)}


def put_train_folders(root: Path) -> None:
    for wnid, name in TRAIN:
        put(root / wnid / name, content(name))


def put_val_folders(root: Path) -> None:
    for wnid, name in VAL:
        put(root / wnid / name, content(name))


def official(root: Path) -> Path:
    class_tars = {f"{wnid}.tar": packed(of_class(wnid)) for wnid in reversed(WNIDS)}
    pack(root / "ILSVRC2012_img_train.tar", class_tars)
    pack(root / "ILSVRC2012_img_val.tar", {name: content(name) for _, name in shuffled(VAL)})
    return root


def extracted(root: Path) -> Path:
    put_train_folders(root / "train")
    put_val_folders(root / "val")
    return root


def class_tars(root: Path) -> Path:
    for wnid in WNIDS:
        pack(root / "train" / f"{wnid}.tar", of_class(wnid))
    put_val_folders(root / "val")
    return root


def hub_tars(root: Path) -> Path:
    parts = [shuffled(TRAIN)[n::3] for n in range(3)]
    for n, part in enumerate(parts):
        pack(root / f"train_images_{n}.tar", hub(part))
    pack(root / "val_images.tar", hub(VAL))
    pack(root / "test_images.tar", {"ILSVRC2012_test_00000001.JPEG": b"test"})
    return root
