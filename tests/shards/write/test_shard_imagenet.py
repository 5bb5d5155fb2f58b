"""Sharding an image folder: nothing is lost, what is written decodes, the bytes are repeatable."""

import hashlib
import io
import json
import os
import struct
import tarfile
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from accelssl.errors import UserError
from accelssl.shards.shard_set import open_shards
from accelssl.shards.write.shard_imagenet import shard_images
from accelssl.shards.write.sharding_report import ShardingReport

ODD_IMAGES = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "odd_images.tar"


def picture(seed: int, width: int = 64, height: int = 48) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def jpeg(seed: int) -> bytes:
    return encoded(picture(seed), "JPEG")


def put(root: Path, path: str, data: bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)


def make_folder(root: Path, classes: int, train: int, val: int = 0) -> Path:
    for label in range(classes):
        for split, count in (("train", train), ("val", val)):
            for i in range(count):
                data = jpeg(label * 1000 + i + (500 if split == "val" else 0))
                put(root, f"{split}/c{label:02d}/{i}.jpg", data)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("folder"), classes=8, train=12, val=3)


def hashes(out: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in out.iterdir()}


def shard_one_class(
    tmp_path: Path, files: dict[str, bytes]
) -> tuple[ShardingReport, dict[str, bytes], dict[str, str]]:
    """Shards files as one class; returns report, image bytes by name, quarantine reason by name."""
    for name, data in files.items():
        put(tmp_path / "in", f"train/only/{name}", data)
    report = shard_images(tmp_path / "in", tmp_path / "out", workers=1)
    images = {}
    for path in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(path) as tar:
            content = {m.name: file.read() for m in tar if (file := tar.extractfile(m))}
        for name, data in content.items():
            key, _, ext = name.partition(".")
            if ext == "jpg":
                images[json.loads(content[f"{key}.json"])["name"]] = data
    rows = (tmp_path / "out" / "quarantine.tsv").read_text().splitlines()[1:]
    return report, images, {row.split("\t")[2]: row.split("\t")[3] for row in rows}


def test_counts_and_checksums_of_the_manifest_are_those_of_the_files(
    folder: Path, tmp_path: Path
) -> None:
    report = shard_images(folder, tmp_path / "set", samples_per_shard=40, workers=1)
    manifest = json.loads((tmp_path / "set" / "manifest.json").read_text())
    assert manifest["classes"] == [f"c{n:02d}" for n in range(8)]
    for split, counts in (("train", [40, 40, 16]), ("val", [24])):
        shards = manifest["splits"][split]["shards"]
        assert [shard["samples"] for shard in shards] == counts
        assert report.splits[split].written == sum(counts)
        for shard in shards:
            for suffix in ("tar", "idx"):
                data = (tmp_path / "set" / f"{shard['name']}.{suffix}").read_bytes()
                assert shard[f"{suffix}_bytes"] == len(data)
                assert shard[f"{suffix}_sha256"] == hashlib.sha256(data).hexdigest()
    assert report.images == 120
    assert report.images_per_s > 0


def test_the_number_of_workers_does_not_change_a_byte(folder: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        out = tmp_path / str(workers)
        shard_images(folder, out, seed=3, samples_per_shard=10, workers=workers)
    assert hashes(tmp_path / "1") == hashes(tmp_path / "2")


def test_another_seed_is_another_order_of_the_same_samples(folder: Path, tmp_path: Path) -> None:
    samples = []
    for seed in (0, 1):
        shard_images(folder, tmp_path / str(seed), seed=seed, workers=1)
        split = open_shards(tmp_path / str(seed)).split("train")
        samples.append([split.read(i) for i in range(len(split))])
    assert samples[0] != samples[1]
    assert sorted(samples[0]) == sorted(samples[1])


def test_the_first_samples_are_a_fair_draw_of_all_classes(folder: Path, tmp_path: Path) -> None:
    shard_images(folder, tmp_path / "set", samples_per_shard=24, workers=1)
    split = open_shards(tmp_path / "set").split("train")
    for first in (0, 24, 48, 72):  # each shard, not only the set
        share = np.bincount([split.read(i)[1] for i in range(first, first + 24)], minlength=8) / 24
        entropy = -sum(p * np.log(p) for p in share if p)
        assert entropy > 0.8 * np.log(8)  # 24 fair draws: 0.93; class-ordered shards: 0.33


def test_headers_hold_nothing_but_the_files(folder: Path, tmp_path: Path) -> None:
    shard_images(folder, tmp_path / "set", workers=1)
    data = (tmp_path / "set" / "val-000000.tar").read_bytes()
    assert data[257:265] == b"ustar\x0000"
    assert len(data) % 10240 == 0
    with tarfile.open(tmp_path / "set" / "val-000000.tar") as tar:
        for member in tar:
            assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)
            assert (member.uname, member.gname, member.type) == ("", "", tarfile.REGTYPE)


def test_labels_follow_the_classes_of_train_even_where_val_lacks_some(tmp_path: Path) -> None:
    for path in ("train/b/0.jpg", "train/a/0.jpg", "train/c/0.jpg", "val/c/0.jpg"):
        put(tmp_path / "in", path, jpeg(1))
    shard_images(tmp_path / "in", tmp_path / "out", workers=1)
    shards = open_shards(tmp_path / "out")
    assert shards.classes == ("a", "b", "c")
    assert shards.split("val").read(0)[1] == 2


def with_orientation(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, "JPEG", exif=exif)


def with_exif(jpeg: bytes, tags: bytes) -> bytes:
    block = b"Exif\0\0" + tags
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + jpeg[2:]


def test_plain_odd_and_broken_files_are_each_kept_transcoded_or_named(tmp_path: Path) -> None:
    plain = {
        "baseline.jpg": jpeg(1),
        "progressive.JPEG": encoded(picture(2), "JPEG", progressive=True),
        "gray.Jpg": encoded(picture(3).convert("L"), "JPEG"),
        "with a space, v1.2.jpg": jpeg(4),
        "upright.jpg": with_orientation(picture(5), 1),
        # Pillow warns about the tags that are not there.
        "cut_exif.jpg": with_exif(jpeg(12), b"II*\0\x08\0\0\0\x05\0"),
    }
    odd = {
        "EXIF orientation": {
            f"turned_{n}.jpg": with_orientation(picture(n), n) for n in range(2, 9)
        },
        "broken EXIF": {"exif.jpg": with_exif(jpeg(6), b"\xff" * 20)},
        "CMYK": {"cmyk.jpg": encoded(picture(7).convert("CMYK"), "JPEG", quality=95)},
        "PNG": {
            "named.jpg": encoded(picture(8), "PNG"),
            "palette.png": encoded(picture(9).quantize(64), "PNG"),
        },
        "WEBP": {"web.webp": encoded(picture(10), "WEBP")},
    }
    broken = {"cut.jpg": jpeg(11)[:-300], "empty.jpg": b"", "page.jpg": b"<!DOCTYPE html>"}
    sources = {name: data for files in odd.values() for name, data in files.items()}
    with warnings.catch_warnings(record=True, action="always") as warned:
        report, images, quarantined = shard_one_class(tmp_path, plain | sources | broken)
    assert not warned
    counts = {reason: len(files) for reason, files in sorted(odd.items())}
    train = report.splits["train"]
    assert (train.written, train.quarantined) == (len(plain) + len(sources), len(broken))
    assert train.transcoded == counts
    entry = json.loads((tmp_path / "out" / "manifest.json").read_text())["splits"]["train"]
    assert (entry["written"], entry["quarantined"]) == (train.written, train.quarantined)
    assert entry["transcoded"] == counts
    assert quarantined.keys() == broken.keys()
    assert {name: data for name, data in images.items() if name in plain} == plain
    assert images.keys() == plain.keys() | sources.keys()
    for name, data in sources.items():
        stored, source = (Image.open(io.BytesIO(d)) for d in (images[name], data))
        assert (stored.format, stored.mode) == ("JPEG", "RGB")
        assert not stored.getexif()
        expected = ImageOps.exif_transpose(source).convert("RGB")
        error = np.abs(np.asarray(stored, np.int16) - np.asarray(expected, np.int16))
        assert error.max() <= 4, name


def bomb(side: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"x") + chunk(b"IEND", b"")


def test_what_does_not_decode_is_named_with_the_reason_and_the_rest_goes_on(tmp_path: Path) -> None:
    whole = encoded(picture(1, 200, 150), "JPEG")
    bad = {f"cut_{cut}.jpg": whole[: len(whole) * cut // 100] for cut in range(5, 100, 5)}
    bad |= {
        "cut_progressive.jpg": encoded(picture(2), "JPEG", progressive=True)[:-200],
        "empty.jpg": b"",
        "garbage.jpg": bytes(range(256)) * 4,
        "page.jpg": b"<!DOCTYPE html><title>404</title>",
        "cut.png": encoded(picture(3), "PNG")[:-100],
        "bomb.png": bomb(12_000),
        "great_bomb.png": bomb(60_000),
        "line\tand\nfeed.jpg": b"",
    }
    good = {f"good_{n}.jpg": jpeg(n) for n in range(5)}
    report, images, quarantined = shard_one_class(tmp_path, bad | good)
    assert images == good
    escaped = {name.replace("\t", r"\t").replace("\n", r"\n") for name in bad}
    assert quarantined.keys() == escaped
    assert report.splits["train"].quarantined == len(bad)
    assert report.splits["train"].written == len(good)
    assert "truncated" in quarantined["cut_80.jpg"]
    assert "empty" in quarantined["empty.jpg"]
    assert "pixels" in quarantined["bomb.png"]
    assert "pixels" in quarantined["great_bomb.png"]
    assert not any("0x" in reason for reason in quarantined.values())  # repeatable


def test_a_file_that_cannot_be_read_is_quarantined_too(tmp_path: Path) -> None:
    put(tmp_path / "in", "train/only/good.jpg", jpeg(1))
    (tmp_path / "in/train/only/dangling.jpg").symlink_to(tmp_path / "nowhere.jpg")
    report = shard_images(tmp_path / "in", tmp_path / "out", workers=1)
    assert report.splits["train"].quarantined == 1
    assert "dangling.jpg\tcannot be read" in Path(report.quarantine).read_text()


def test_a_shard_where_nothing_decodes_leaves_no_gap(tmp_path: Path) -> None:
    for n in range(12):
        put(tmp_path / "in", f"train/only/{n}.jpg", jpeg(n) if n % 3 else b"")
    shard_images(tmp_path / "in", tmp_path / "out", samples_per_shard=1, workers=2)
    assert sorted(p.name for p in (tmp_path / "out").glob("*.tar")) == [
        f"train-{n:06d}.tar" for n in range(8)
    ]
    assert len(open_shards(tmp_path / "out").split("train")) == 8
    assert not list((tmp_path / "out").glob("*.part"))


def test_what_is_no_image_is_counted_as_ignored(tmp_path: Path) -> None:
    root = tmp_path / "in"
    ignored = ["notes.txt", "train/README", "train/only/._0.jpg", "train/only/labels.csv"]
    for path in ["train/only/0.jpg", *ignored]:
        put(root, path, jpeg(1))
    (root / "train/only/nested.jpg").mkdir()
    (root / "train/.cache").mkdir()
    report = shard_images(root, tmp_path / "out", workers=1)
    expected = {*ignored, "train/only/nested.jpg", "train/.cache"}
    assert (report.ignored, set(report.ignored_examples)) == (len(expected), expected)
    assert report.splits["train"].written == 1


def test_progress_counts_up_to_the_number_of_images(folder: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        seen = [0]

        def progress(done: int, total: int, seen: list[int] = seen) -> None:
            assert seen[-1] <= done <= total == 120
            seen.append(done)

        shard_images(
            folder,
            tmp_path / str(workers),
            samples_per_shard=10,
            workers=workers,
            progress=progress,
        )
        assert seen[-1] == 120


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ([], "no folder named train"),
        (["0.jpg"], "no folder named train"),
        (["train/0.jpg"], "no class folders"),
        (["train/a/notes.txt"], "no images"),
        (["train/a/0.jpg", "train/b/notes.txt"], "b has no images"),
        (["train/a/0.jpg", "val/0.jpg"], "no class folders"),
        (["train/a/0.jpg", "val/a/notes.txt"], "no images"),
        (["train/a/0.jpg", "val/b/0.jpg"], "classes that train lacks: b"),
    ],
)
def test_a_source_laid_out_otherwise_is_refused(
    tmp_path: Path, files: list[str], named: str
) -> None:
    (tmp_path / "in").mkdir()
    for path in files:
        put(tmp_path / "in", path, jpeg(1))
    with pytest.raises(UserError, match=named) as caught:
        shard_images(tmp_path / "in", tmp_path / "out", workers=1)
    assert caught.value.remedy
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("source", ["nowhere", "file"])
def test_a_source_that_cannot_be_read_is_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be read"):
        shard_images(tmp_path / source, tmp_path / "out")


def test_a_split_where_nothing_decodes_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "in", "train/a/0.jpg", b"")
    with pytest.raises(UserError, match="None of the 1 images of train"):
        shard_images(tmp_path / "in", tmp_path / "out", workers=1)
    with pytest.raises(UserError, match="did not finish"):
        open_shards(tmp_path / "out")


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {"samples_per_shard": 0}, {"seed": -1}, {"workers": -2}]
)
def test_options_out_of_range_are_refused(
    folder: Path, tmp_path: Path, options: dict[str, int]
) -> None:
    (name, value), *_ = options.items()
    with pytest.raises(UserError, match=f"{name} is {value}"):
        shard_images(folder, tmp_path / "out", **options)  # type: ignore[arg-type]


def test_a_name_that_is_no_text_goes_through(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "train" / "only"
    folder.mkdir(parents=True)
    try:
        for name, data in ((b"\xff\xfe.jpg", jpeg(1)), (b"\xff.jpg", b"")):
            Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(data)
    except OSError:
        pytest.skip("this file system takes only names that are text")
    shard_images(tmp_path / "in", tmp_path / "out", workers=2)
    assert len(open_shards(tmp_path / "out").split("train")) == 1
    assert r"\udcff.jpg" in (tmp_path / "out" / "quarantine.tsv").read_text()


@pytest.mark.skipif(not ODD_IMAGES.exists(), reason="needs the collection of odd images")
def test_every_odd_image_is_either_written_or_quarantined(tmp_path: Path) -> None:
    with tarfile.open(ODD_IMAGES) as tar:
        files = {m.name: file.read() for m in tar if (file := tar.extractfile(m))}
    report, images, quarantined = shard_one_class(tmp_path, files)
    assert not images.keys() & quarantined.keys()
    assert images.keys() | quarantined.keys() == files.keys()
    train = report.splits["train"]
    assert (train.written, train.quarantined) == (len(images), len(quarantined))
    transcoded = {name for name, data in images.items() if data != files[name]}
    assert sum(train.transcoded.values()) == len(transcoded)
