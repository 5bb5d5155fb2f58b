"""Pictures with a large shorter side are stored smaller, all others as they are."""

import hashlib
import importlib
import io
import tarfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

from accelssl.errors import UserError
from accelssl.shards.images.image_check import CheckedImage, UnusableImage, check_image
from accelssl.shards.shard_set import open_shards
from accelssl.shards.verify.verify import verify_shards
from accelssl.shards.write.shard_imagenet import shard_images

PHOTOGRAPHS = Path(__file__).resolve().parents[3] / ".." / "shared" / "data" / "fullsize_200.tar"
ORIENTATION = 0x0112


def picture(seed: int, width: int, height: int) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def decoded(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def hashes(out: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in out.iterdir()}


SHAPES = [(61, 43), (43, 61), (33, 33), (500, 37), (37, 500), (34, 33), (97, 96), (333, 250)]


@pytest.mark.parametrize(("width", "height"), SHAPES)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_the_shorter_side_becomes_as_asked_and_the_other_keeps_the_aspect_within_a_pixel(
    width: int, height: int, form: str
) -> None:
    data = encoded(picture(width, width, height), form)
    checked = check_image(data, short_side=32)
    stored = decoded(checked.jpeg)
    exact = Fraction(32 * max(width, height), min(width, height))
    assert checked.transcoded_because == "shorter side over 32"
    assert min(stored.size) == 32
    assert abs(max(stored.size) - exact) < 1
    assert (stored.width > stored.height) <= (width > height)
    resized = decoded(data).resize(stored.size, Image.Resampling.LANCZOS)
    assert checked.jpeg == encoded(resized, quality=95, subsampling=0)


@pytest.mark.parametrize("size", [(32, 32), (32, 900), (900, 32), (31, 500), (5, 7)])
def test_a_picture_that_is_small_enough_keeps_its_bytes(size: tuple[int, int]) -> None:
    for subsampling in (0, 2):
        data = encoded(picture(1, *size), quality=71, subsampling=subsampling, progressive=True)
        assert check_image(data, short_side=32) == CheckedImage(data, None)


def test_a_small_picture_that_is_no_plain_jpeg_is_judged_as_ever() -> None:
    for data in (encoded(picture(1, 20, 30), "PNG"), encoded(picture(2, 20, 30).convert("CMYK"))):
        assert check_image(data, short_side=32) == check_image(data)


@pytest.mark.parametrize(
    ("size", "limits", "decides"),
    [
        ((300, 200), (90, 70), "longer side over 90"),  # to 90 x 60
        ((300, 200), (200, 70), "shorter side over 70"),  # to 105 x 70
        ((200, 300), (90, 70), "longer side over 90"),
        ((200, 200), (64, 64), "longer side over 64"),  # both; a square keeps one name
        ((200, 200), (64, 32), "shorter side over 32"),
        ((300, 30), (90, 40), "longer side over 90"),  # the shorter side is small as it is
        ((100, 90), (100, 40), "shorter side over 40"),  # and here the longer
    ],
)
def test_both_limits_are_kept_and_the_one_that_decides_is_named(
    size: tuple[int, int], limits: tuple[int, int], decides: str
) -> None:
    max_side, short_side = limits
    data = encoded(picture(3, *size))
    checked = check_image(data, max_side, short_side)
    stored = decoded(checked.jpeg)
    assert checked.transcoded_because == decides
    limit = max_side if decides.startswith("longer") else short_side
    assert (max if decides.startswith("longer") else min)(stored.size) == limit
    assert max(stored.size) <= max_side and min(stored.size) <= short_side
    scale = Fraction(limit, max(size) if decides.startswith("longer") else min(size))
    for side, before in zip(stored.size, size, strict=True):
        assert abs(side - before * scale) < 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_is_upright_before_it_is_shrunk(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encoded(picture(4, 90, 60), exif=exif)
    stored = decoded(check_image(data, short_side=40).jpeg)
    upright = ImageOps.exif_transpose(decoded(data))
    expected = upright.resize(stored.size, Image.Resampling.LANCZOS)
    assert stored.size == ((60, 40) if orientation < 5 else (40, 60))
    assert not stored.getexif()
    assert stored.tobytes() == decoded(encoded(expected, quality=95, subsampling=0)).tobytes()


def test_gray_stays_gray_and_other_colours_become_those_that_every_decoder_reads() -> None:
    assert decoded(check_image(encoded(picture(5, 90, 60).convert("L")), None, 40).jpeg).mode == "L"
    for mode in ("CMYK", "RGB"):
        data = encoded(picture(5, 90, 60).convert(mode))
        checked = check_image(data, short_side=40)
        stored = decoded(checked.jpeg)
        assert stored.mode == "RGB" and "progressive" not in stored.info
        assert {factors[1:3] for factors in stored.layer} == {(1, 1)}  # type: ignore[attr-defined]
        assert check_image(checked.jpeg, short_side=40) == CheckedImage(checked.jpeg, None)


def test_a_large_picture_that_does_not_decode_is_refused() -> None:
    with pytest.raises(UnusableImage, match="truncated"):
        check_image(encoded(picture(6, 90, 60))[:-300], short_side=40)


def photographs(count: int) -> list[bytes]:
    if not PHOTOGRAPHS.exists():
        pytest.skip("needs full-size photographs")
    with tarfile.open(PHOTOGRAPHS) as tar:
        files = (tar.extractfile(member) for member in tar if member.isfile())
        return [file.read() for _, file in zip(range(count), files, strict=False) if file]


def with_dali(jpegs: list[bytes]) -> list[npt.NDArray[np.uint8]]:
    dali: Any = pytest.importorskip("nvidia.dali")
    pipeline = dali.Pipeline(len(jpegs), 2, None, prefetch_queue_depth=1)
    with pipeline:
        arrays = [np.frombuffer(jpeg, np.uint8) for jpeg in jpegs]
        data = dali.fn.external_source(source=lambda: arrays, batch=True)
        pipeline.set_outputs(dali.fn.decoders.image(data, output_type=dali.types.RGB))
    pipeline.build()
    (images,) = pipeline.run()
    return [np.array(images[i]) for i in range(len(jpegs))]


def test_dali_decodes_what_is_stored_as_pillow_does() -> None:
    jpegs = [check_image(encoded(picture(n, 190 + n, 130)), None, 99).jpeg for n in range(6)]
    for jpeg, pixels in zip(jpegs, with_dali(jpegs), strict=True):
        assert np.array_equal(pixels, np.asarray(decoded(jpeg).convert("RGB")))


def test_photographs_are_stored_close_to_the_shrunk_picture_and_in_fewer_bytes() -> None:
    files = photographs(24)
    large = [data for data in files if min(decoded(data).size) > 256]
    stored = [check_image(data, short_side=256).jpeg for data in large]
    assert len(large) >= 12 and sum(map(len, stored)) < 0.7 * sum(map(len, large))
    for data, jpeg, pixels in zip(large, stored, with_dali(stored), strict=True):
        size = decoded(jpeg).size
        assert min(size) == 256
        shrunk = decoded(data).convert("RGB").resize(size, Image.Resampling.LANCZOS)
        error = pixels.astype(float) - np.asarray(shrunk, float)
        assert 10 * np.log10(255**2 / np.square(error).mean()) > 35


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 pictures of two classes, the even ones with a shorter side of 50, the odd ones of 40."""
    root = tmp_path_factory.mktemp("folder")
    for n in range(24):
        path = root / "train" / f"c{n % 4 // 2}" / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(picture(n, 70 + n, 40 if n % 2 else 50)))
    return root


def test_a_set_is_the_same_bytes_for_any_workers_and_packaging(
    folder: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "source.tar"
    with tarfile.open(packed, "w") as tar:
        for path in sorted((folder / "train").rglob("*.jpg"), reverse=True):
            tar.add(path, path.relative_to(folder / "train"))
    made = []
    for n, (source, workers) in enumerate([(folder, 1), (folder, 2), (packed, 2)]):
        out = tmp_path / str(n)
        shard_images(source, out, samples_per_shard=6, short_side=40, workers=workers)
        made.append(hashes(out))
    assert made[0] == made[1] == made[2]
    assert verify_shards(str(tmp_path / "0"), full=True, workers=1).is_right


def test_manifest_and_report_say_what_was_shrunk(folder: Path, tmp_path: Path) -> None:
    report = shard_images(folder, tmp_path / "set", short_side=40, max_side=90, workers=1)
    train = report.splits["train"]
    # 70 + n wide: n = 21 and 23 are over 90, and kept in both limits by that one alone.
    counts = {"longer side over 90": 2, "shorter side over 40": 12}
    assert train.transcoded == counts and train.shrunk == 14
    assert "  12 shrunk: shorter side over 40" in str(report)
    manifest = open_shards(tmp_path / "set").manifest
    assert manifest.options["short_side"] == 40 and manifest.options["max_side"] == 90
    assert manifest.splits["train"].transcoded == counts


def test_no_limit_is_the_default_and_leaves_no_trace(folder: Path, tmp_path: Path) -> None:
    report = shard_images(folder, tmp_path / "set", workers=1)
    assert report.splits["train"].shrunk == 0 and report.splits["train"].transcoded == {}
    assert "short_side" not in open_shards(tmp_path / "set").manifest.options


def test_a_stopped_job_goes_on_with_the_same_value_alone(folder: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done > 6:
            raise KeyboardInterrupt

    out = tmp_path / "set"
    with pytest.raises(KeyboardInterrupt):
        shard_images(folder, out, samples_per_shard=6, short_side=40, workers=1, progress=stop)
    for other, named in ((None, "short_side 40, now not set"), (41, "short_side 40, now 41")):
        with pytest.raises(UserError, match=named):
            shard_images(folder, out, samples_per_shard=6, short_side=other, workers=1)
    report = shard_images(folder, out, samples_per_shard=6, short_side=40, workers=1)
    assert report.taken_over == 6
    shard_images(folder, tmp_path / "whole", samples_per_shard=6, short_side=40, workers=1)
    assert hashes(out) == hashes(tmp_path / "whole")


@pytest.mark.parametrize(
    ("max_side", "short_side", "named"),
    [
        (None, 0, "short_side is 0"),
        (None, -256, "short_side is -256"),
        (None, 15, "short_side is 15.* 16 or more"),
        (100, 101, "short_side is 101, more than max_side, which is 100"),
        (12, 16, "short_side is 16, more than max_side, which is 12"),
    ],
)
def test_values_that_make_no_sense_are_refused_before_anything_is_written(
    folder: Path, tmp_path: Path, max_side: int | None, short_side: int, named: str
) -> None:
    out = tmp_path / "set"
    with pytest.raises(UserError, match=named):
        shard_images(folder, out, max_side=max_side, short_side=short_side, workers=1)
    assert not out.exists()


@pytest.mark.parametrize(("max_side", "short_side"), [(None, 16), (40, 40)])
def test_values_at_their_bounds_are_taken(
    folder: Path, tmp_path: Path, max_side: int | None, short_side: int
) -> None:
    out = tmp_path / "set"
    shard_images(folder, out, max_side=max_side, short_side=short_side, workers=1)
    split = open_shards(out).split("train")
    sizes = [decoded(split.read(i)[0]).size for i in range(len(split))]
    assert all(min(size) <= short_side and max(size) <= (max_side or 10_000) for size in sizes)


def test_the_benchmark_finds_crops_of_untouched_pictures_equal_and_the_others_enlarged_more(
    folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("nvidia.dali")
    # Imported by name: type checkers see the wheel, which does not hold the script.
    short_side = importlib.import_module("accelssl.benchmarks.studies.short_side")

    full, _ = short_side.pack(folder, tmp_path / "full", None)
    shrunk, _ = short_side.pack(folder, tmp_path / "shrunk", 40)
    crops = short_side.compare(full, shrunk, epochs=1)
    is_smaller = [min(decoded(data).size) > 40 for data in full.files]
    assert crops.is_smaller_N.tolist() == is_smaller and sum(is_smaller) == 12
    for absolute_N, psnr_N in (crops.drawn_2N, crops.same_2N):
        assert (absolute_N > 0).tolist() == is_smaller
        assert np.isfinite(psnr_N).tolist() == is_smaller
    assert (crops.same_2N[0] <= crops.drawn_2N[0] + 0.5).all()
    # Windows are whole pixels: a factor is right to half a pixel of some ten.
    growth = crops.factors_2N[1] / crops.factors_2N[0]
    assert np.allclose(growth, np.where(is_smaller, 50 / 40, 1), rtol=0.06)
    top, left, bottom, right = full.windows(0)[0].tolist()
    assert crops.factors_2N[0, 0] == pytest.approx(240 / ((bottom - top) * (right - left)) ** 0.5)
    width, height = decoded(full.files[0]).size
    assert crops.area_N[0] == pytest.approx((bottom - top) * (right - left) / (width * height))
