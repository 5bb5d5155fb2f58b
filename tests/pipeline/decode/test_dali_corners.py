"""Odd, huge and broken images beside ordinary ones, and memory over many batches."""

import ast
import io
import itertools
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from accelssl import cli
from accelssl.pipeline import views
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.decode.dali import CropStream
from accelssl.pipeline.decode.decoding import Decoding
from accelssl.pipeline.draws.draws import Drawn
from accelssl.pipeline.draws.order import Plan, Position
from accelssl.pipeline.loader import Loader, LoaderOptions
from accelssl.pipeline.read.feed import EncodedBatches
from accelssl.shards.shard_set import Split, open_shards
from accelssl.shards.write.shard_imagenet import shard_images
from tests import small_vit

ODD_IMAGES = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "odd_images.tar"
CPU = torch.device("cpu")
DEVICES = [
    pytest.param(CPU, id="cpu"),
    pytest.param(torch.device("cuda"), id="cuda", marks=pytest.mark.gpu),
]
SIDE = 96
HALF = (Compression(16, 0.5),) * 2


def picture(seed: int, width: int = SIDE, height: int = SIDE) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def rotated_by_exif(image: Image.Image, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, quality=95, exif=exif)


def kept_as_they_are() -> dict[str, bytes]:
    """Return odd JPEGs by name that shard-imagenet stores byte for byte."""
    return {
        "plain 4:2:0": encoded(picture(0), quality=90),
        "plain 4:2:2": encoded(picture(1), quality=90, subsampling=1),
        "plain 4:4:4": encoded(picture(2), quality=90, subsampling=0),
        "gray": encoded(picture(3).convert("L"), quality=90),
        "progressive": encoded(picture(4), quality=90, progressive=True),
        "progressive 4:4:4": encoded(picture(5), quality=90, progressive=True, subsampling=0),
        "progressive gray": encoded(picture(6).convert("L"), progressive=True),
        "restart markers": encoded(picture(7), quality=90, restart_marker_blocks=3),
        "own tables": encoded(picture(8), quality=90, optimize=True),
        "a comment and a profile": encoded(picture(9), comment=b"x" * 999, icc_profile=b"y" * 99),
        "coarse": encoded(picture(10), quality=5, subsampling=0),
    }


def written_anew() -> dict[str, bytes]:
    """Return odd images by name that shard-imagenet stores as another JPEG."""
    return {
        "CMYK": encoded(picture(20).convert("CMYK"), quality=95),
        "PNG with alpha": encoded(picture(21).convert("RGBA"), "PNG"),
        "palette": encoded(picture(22).convert("P"), "PNG"),
        **{f"EXIF {o}": rotated_by_exif(picture(22 + o), o) for o in range(2, 9)},
    }


def shard(folder: Path, images: dict[str, bytes]) -> tuple[Split, dict[str, int]]:
    """Return a shard set of these images, and the position of each."""
    (folder / "in/train/only").mkdir(parents=True)
    for number, data in enumerate(images.values()):
        (folder / f"in/train/only/{number}.jpg").write_bytes(data)
    shard_images(folder / "in", folder / "out", workers=1)
    with tarfile.open(next((folder / "out").glob("*.tar"))) as tar:
        notes = [json.load(tar.extractfile(m)) for m in tar if m.name.endswith(".json")]  # type: ignore[arg-type]
    number_at = [int(Path(note["name"]).stem) for note in notes]
    names = list(images)
    return open_shards(folder / "out").split("train"), {
        names[number]: sample for sample, number in enumerate(number_at)
    }


def top_left(split: Split, samples: list[int], side: int, device: torch.device) -> np.ndarray:
    """Return side x side pixels of each sample from the loader's stream, in one batch."""
    windows = np.tile(np.array([0, 0, side, side], dtype=np.float32), (len(samples), 1))
    plan = Plan(np.array(samples), 0, Position())
    batches = EncodedBatches(split, iter([plan]), lambda *_: Drawn((windows,)), threads=1)
    stream = CropStream(split, batches, [side], len(samples), device, Decoding(2))
    ((_, (crops,)),) = itertools.islice(stream, 1)
    return crops.cpu().numpy().astype(int)


def shown_by_pillow(data: bytes, side: int) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB")).astype(int)[:side, :side]


def with_chroma_repeated(rgb_HWC: np.ndarray, rows: int) -> np.ndarray:
    """Return the picture with the mean chroma of each block of two columns and `rows` rows."""
    image = Image.fromarray(rgb_HWC.astype(np.uint8)).convert("YCbCr")
    planes_HWC = np.asarray(image).astype(float)
    height, width, _ = planes_HWC.shape
    cells = planes_HWC[..., 1:].reshape(height // rows, rows, width // 2, 2, 2)
    means = cells.mean((1, 3)).repeat(rows, 0).repeat(2, 1)
    repeated = np.concatenate([planes_HWC[..., :1], means], axis=2).round().astype(np.uint8)
    return np.asarray(Image.fromarray(repeated, "YCbCr").convert("RGB")).astype(int)


@pytest.mark.parametrize("device", DEVICES)
def test_odd_jpegs_have_pillows_pixels_in_one_batch_with_ordinary_ones(
    tmp_path: Path, device: torch.device
) -> None:
    """A GPU's decoder repeats subsampled chroma where Pillow interpolates it."""
    kept, anew = kept_as_they_are(), written_anew()
    split, at = shard(tmp_path, kept | anew)
    names = list(at)
    crops = top_left(split, [at[name] for name in names], SIDE, device)
    for name, pixels in zip(names, crops, strict=True):
        stored = split.read(at[name])[0]
        assert (stored == kept.get(name)) == (name in kept), name
        expected = shown_by_pillow(stored, SIDE)
        if device == CPU or "4:4:4" in name or "gray" in name or name in anew:
            assert np.abs(pixels - expected).max() <= 2, name
        else:
            repeated = with_chroma_repeated(expected, rows=1 if "4:2:2" in name else 2)
            assert np.abs(pixels - repeated).mean() <= 2, name
        if name in anew:  # upright and in the source's colours
            assert np.abs(pixels - shown_by_pillow(anew[name], SIDE)).max() <= 6, name


@pytest.mark.skipif(not ODD_IMAGES.exists(), reason="needs odd_images.tar")
@pytest.mark.parametrize("device", DEVICES)
def test_whatever_is_let_through_of_the_odd_images_is_decoded_as_by_pillow(
    tmp_path: Path, device: torch.device
) -> None:
    with tarfile.open(ODD_IMAGES) as tar:
        odd = {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]
    split, at = shard(tmp_path, odd | {f"ordinary {i}": encoded(picture(i)) for i in range(11)})
    assert {"arithmetic.jpg", "progressive.jpg", "cmyk_ycck.jpg", "one_by_one.jpg"} <= at.keys()
    loader = Loader(split, views.simclr(48), LoaderOptions(8, 0, device))
    seen = []
    for _ in range(2 * (len(split) // 8)):
        batch = loader.next(HALF)
        seen += batch.samples_N.tolist()
        assert all(torch.isfinite(view.values_NLV).all() for view in batch.views)
    assert set(seen) == set(range(len(split)))
    by_side: dict[int, list[int]] = {}
    for sample in range(len(split)):
        with Image.open(io.BytesIO(split.read(sample)[0])) as image:
            by_side.setdefault(min(SIDE, *image.size), []).append(sample)
    assert len(by_side) >= 3
    for side, samples in by_side.items():
        for sample, pixels in zip(samples, top_left(split, samples, side, device), strict=True):
            gap = np.abs(pixels - shown_by_pillow(split.read(sample)[0], side))
            assert gap.max() <= 2 if device == CPU else gap.mean() <= 3, split.describe(sample)


LOADING = """
import sys, torch
from accelssl import cli
from accelssl.pipeline import views
from accelssl.pipeline.compression import Compression
from accelssl.pipeline.loader import Loader, LoaderOptions
from accelssl.shards.shard_set import open_shards
torch.set_num_threads(1)
HALF = (Compression(16, 0.5),) * 2
def loader(folder, **options):
    options = LoaderOptions(seed=0, **{"batch": 8, "device": torch.device("cpu"), **options})
    return Loader(open_shards(folder).split("train"), views.simclr(32), options)
def memory_bytes(name="VmRSS"):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))
"""


def printed_by(code: str, *arguments: object) -> str:
    """Return the output of a new process that runs LOADING and the code; raise if it hangs."""
    command = [sys.executable, "-c", LOADING + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


PEAKS = """
for folder in sys.argv[1:]:
    open("/proc/self/clear_refs", "w").write("5")  # forget the peak so far
    before, batches = memory_bytes(), loader(folder)
    for _ in range(5):
        batches.next(HALF)
    print(memory_bytes("VmHWM") - before)
    del batches
"""


@pytest.fixture(scope="module")
def with_a_huge_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the set `huge`, with one image of 6000 x 6000, and `limited`, with max_side."""
    root = tmp_path_factory.mktemp("huge")
    pictures = root / "pictures/train/only"
    pictures.mkdir(parents=True)
    for i in range(7):
        picture(i, 120, 90).save(pictures / f"{i}.jpg")
    picture(8, 6000, 6000).save(pictures / "huge.jpg")
    shard_images(root / "pictures", root / "huge", workers=1)
    shard_images(root / "pictures", root / "limited", workers=1, max_side=500)
    return root


def test_a_huge_image_in_each_batch_takes_a_few_of_its_pictures_and_max_side_none(
    with_a_huge_one: Path,
) -> None:
    """Memory holds one huge image per batch decoded ahead, and the one being decoded.

    The other 64 MB are for bytes that are read ahead and for other allocations of a loader.
    """
    # The first loader of a process also loads DALI's libraries.
    folders = [with_a_huge_one / name for name in ("limited", "limited", "huge")]
    _, limited_bytes, huge_bytes = map(int, printed_by(PEAKS, *folders).split())
    picture_bytes, any_bytes = 6000 * 6000 * 3, 64 * 2**20
    assert limited_bytes < any_bytes
    assert picture_bytes < huge_bytes < (Decoding.prefetch + 1) * picture_bytes + any_bytes


@pytest.mark.gpu
def test_a_huge_image_in_each_batch_leaves_a_gpu_its_memory(with_a_huge_one: Path) -> None:
    """The bound is twice that of a CPU: the decoder's planes and tables need as much again."""
    code = """
device = torch.device("cuda")
torch.zeros(1, device=device)
for folder in sys.argv[1:]:
    before, least = torch.cuda.mem_get_info()[0], 2**62
    batches = loader(folder, device=device)
    for _ in range(20):
        batches.next(HALF)
        least = min(least, torch.cuda.mem_get_info()[0])
    print(before - least)
    del batches
"""
    folders = [with_a_huge_one / name for name in ("limited", "huge")]
    limited_bytes, huge_bytes = map(int, printed_by(code, *folders).split())
    pictures_bytes = 2 * (Decoding.prefetch + 1) * 6000 * 6000 * 3
    assert huge_bytes < pictures_bytes + 2**29, (limited_bytes, huge_bytes)


PLATEAU = """
batches, kept, seen = loader(sys.argv[1], batch=4), [], []
for step in range(320):
    batch = batches.next(HALF)
    if step >= 240:  # a leak on purpose
        kept.append([view.values_NLV.clone() for view in batch.views])
    seen.append(memory_bytes())
print(batches.position.epoch, *(max(seen[a : a + 80]) for a in range(0, 320, 80)))
"""


def test_memory_stays_where_it_is_over_many_epochs(shard_dir: Path) -> None:
    """A leak of one batch of bytes, crops or tokens would exceed the bound."""
    epochs, _, middle, last, leaking = map(int, printed_by(PLATEAU, shard_dir).split())
    noise_bytes = 80 * 9600
    assert epochs == 32
    assert last - middle < noise_bytes < leaking - last


@pytest.mark.gpu
@pytest.mark.slow
def test_memory_of_gpu_and_host_stays_where_it_is(shard_dir: Path) -> None:
    code = """
device = torch.device("cuda")
batches, rows = loader(sys.argv[1], device=device), []
for _ in range(1500):
    batches.next(HALF)
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    rows.append((torch.cuda.memory_allocated(), total - free, memory_bytes()))
for a in (500, 1000):
    print(*(max(column) for column in zip(*rows[a : a + 500])))
"""
    middle, last = (list(map(int, row.split())) for row in printed_by(code, shard_dir).splitlines())
    allocated, used, host = (b - a for a, b in zip(middle, last, strict=True))
    # DALI's pool and the driver take memory in pages of 2 MB.
    assert allocated < 2**20 and used <= 2 * 2**21 and host < 4 * 2**20


FAILING_READS = """
import accelssl.pipeline.draws.draws as module
from accelssl.errors import UserError
windows, calls, error = module.random_windows, 0, None
def failing(*arguments):  # called by the threads that read
    global calls
    calls += 1
    if calls > 9:
        raise error
    return windows(*arguments)
module.random_windows = failing
def taken(batches):
    for count in range(40):
        try:
            batches.next(HALF, HALF)
        except Exception as raised:
            return count, type(raised).__name__, str(raised)
errors = UserError("It broke.", "Mend it."), RuntimeError("lost"), MemoryError("no"), OSError(5)
for error in errors:
    for works_ahead in (False, True):
        calls, batches = 0, loader(sys.argv[1], works_ahead=works_ahead)
        print([taken(batches), taken(batches), taken(batches)])
"""


def test_what_fails_in_a_reading_thread_is_raised_and_nothing_hangs(shard_dir: Path) -> None:
    """Nothing hangs at the error, at another call, or at exit. Four batches are readable."""
    cases = [ast.literal_eval(line) for line in printed_by(FAILING_READS, shard_dir).splitlines()]
    raised = ["UserError", "RuntimeError", "MemoryError", "OSError"]
    messages = ["It broke. Mend it.", "lost", "no", "5"]
    assert [first[1:] for first, _, _ in cases] == [
        told for told in zip(raised, messages, strict=True) for _ in range(2)
    ]
    for first, second, third in cases:
        assert first[0] + second[0] <= 4 and third[0] == 0


def test_a_broken_image_ends_a_run_by_its_shard_and_key(
    shard_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Zeros overwrite the first scan: the header is right, the pixels are not."""
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in shard_dir.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    train = open_shards(damaged).split("train")
    tar, begin, size = Path(train.tars[0]), int(train.image_offset[9]), train.image_size_bytes[9]
    content = bytearray(tar.read_bytes())
    content[begin + 20 : begin + size] = bytes(int(size) - 20)
    tar.write_bytes(content)
    words = f"train --data {damaged} --out {tmp_path / 'run'} --budget 1k --batch 8 --device cpu"
    options = f"--model {small_vit.NAME} --head-hidden 16 --threads 1"
    monkeypatch.setattr(sys, "argv", ["accelssl", *words.split(), *options.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    error = capfd.readouterr().err
    assert ended.value.code == 2 and "Traceback" not in error
    assert train.describe(9) in " ".join(error.split())
