"""The commands about shard sets, end to end."""

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

from accelssl import cli
from accelssl.shards.shard_set import open_shards
from accelssl.shards.write.shard_imagenet import shard_images


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(sys, "argv", ["accelssl", *map(str, words)])
        cli.main()
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


@pytest.fixture
def pictures(shard_dir: Path) -> Path:
    return shard_dir.parent / "pictures"


def test_a_set_is_right_until_a_byte_of_it_changes(
    capsys: pytest.CaptureFixture[str], pictures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "set"
    assert run(capsys, "shard-imagenet", pictures, out, "--workers", 1)[0] == 0
    code, text, _ = run(capsys, "verify-shards", out, "--full", "--workers", 1)
    assert code == 0 and "60 of 60 decoded" in text
    split = open_shards(out).split("train")
    with (out / "train-000000.tar").open("r+b") as tar:
        tar.seek(int(split.image_offset[3]) + 200)
        byte = tar.read(1)
        tar.seek(-1, io.SEEK_CUR)
        tar.write(bytes([byte[0] ^ 1]))
    code, text, _ = run(capsys, "verify-shards", out, "--workers", 1, "--json")
    report = json.loads(text)
    wrong = {check["name"] for check in report["checks"] if check["outcome"] == "wrong"}
    assert code == 1 and "checksums" in wrong
    assert "train-000000.tar" in text


def test_classes_sides_and_counts_can_be_chosen(
    capsys: pytest.CaptureFixture[str], pictures: Path, tmp_path: Path
) -> None:
    (tmp_path / "two.txt").write_text("# two of four\nclass3\nclass1\n")
    sets = {}
    for name, options in {
        "subset": ["--subset", tmp_path / "two.txt"],
        "classes": ["--classes", "class1, class3", "--limit-per-class", 3, "--max-side", 64],
        "short": ["--short-side", 40, "--limit-per-class", 3, "--workers", 1],
    }.items():
        code, _, err = run(capsys, "shard-imagenet", pictures, tmp_path / name, *options)
        assert code == 0, err
        sets[name] = open_shards(tmp_path / name)
    for name in ("subset", "classes"):
        assert sets[name].classes == ("class1", "class3")
    assert len(sets["subset"].split("train")) == 20
    few = sets["classes"].split("train")
    assert len(few) == 6
    sizes = [Image.open(io.BytesIO(few.read(i)[0])).size for i in range(len(few))]
    assert {max(size) for size in sizes} == {64}
    assert sets["classes"].manifest.options["limit_per_class"] == 3
    short = sets["short"].split("train")
    shorter = [min(Image.open(io.BytesIO(short.read(i)[0])).size) for i in range(len(short))]
    assert shorter == [40] * 12
    assert sets["short"].manifest.options["short_side"] == 40


def test_what_was_shrunk_is_told(
    capsys: pytest.CaptureFixture[str], pictures: Path, tmp_path: Path
) -> None:
    code, text, _ = run(capsys, "shard-imagenet", pictures, tmp_path / "set", "--short-side", 40)
    assert code == 0
    assert "  40 shrunk: shorter side over 40" in text and "  20 shrunk: " in text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--short-side 40", "--short-side not set, now 40"),
        ("--max-side 70", "--max-side not set, now 70"),
        ("--seed 3", "--seed 0, now 3"),
        ("--samples-per-shard 9", "--samples-per-shard of train 7, now 9"),
        ("--limit-per-class 2", "--limit-per-class not set, now 2"),
    ],
)
def test_a_job_that_is_continued_with_another_option_is_refused_by_its_name(
    capsys: pytest.CaptureFixture[str], pictures: Path, tmp_path: Path, options: str, named: str
) -> None:
    def stop(done: int, total: int) -> None:
        if done > 7:
            raise KeyboardInterrupt

    out = tmp_path / "set"
    with pytest.raises(KeyboardInterrupt):
        shard_images(pictures, out, samples_per_shard=7, workers=1, progress=stop)
    before = (out / "unfinished.json").read_bytes()
    same = "" if "--samples-per-shard" in options else "--samples-per-shard 7"
    words = [*options.split(), *same.split()]
    code, _, err = run(capsys, "shard-imagenet", pictures, out, *words, "--workers", 1)
    assert code == 2 and named in err
    assert (out / "unfinished.json").read_bytes() == before


def test_tars_of_others_become_a_set_or_are_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path
) -> None:
    split = open_shards(shard_dir).split("train")
    samples = [split.read(i) for i in range(12)]
    with tarfile.open(tmp_path / "train-0.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for n, (image, label) in enumerate(samples):
            for suffix, data in (("JPEG", image), ("cls", str(label).encode())):
                member = tarfile.TarInfo(
                    f"a folder with a name that is long {'x' * 80}/{n}.{suffix}"
                )
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\n")
    code, text, _ = run(capsys, "index-shards", tmp_path, "--classes", tmp_path / "names.txt")
    assert code == 0 and "12 samples" in text
    adopted = open_shards(tmp_path)
    assert adopted.classes == ("a", "b", "c", "d")
    assert [adopted.split("train").read(i) for i in range(12)] == samples
    assert run(capsys, "verify-shards", tmp_path, "--full")[0] == 0
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "train-1.tar").write_bytes(b"no tar at all" * 100)
    code, text, _ = run(capsys, "index-shards", tmp_path)
    assert code == 1 and "train-1.tar" in text
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("shard-imagenet PICTURES OUT --subset nowhere.txt", "nowhere.txt"),
        ("shard-imagenet PICTURES OUT --classes class9", "class9"),
        ("shard-imagenet PICTURES OUT --classes class1 --subset in100", "in100"),
        ("shard-imagenet PICTURES OUT --limit-per-class 0", "--limit-per-class is 0"),
        ("shard-imagenet PICTURES OUT --max-side 0", "--max-side is 0"),
        ("shard-imagenet PICTURES OUT --short-side 0", "--short-side is 0"),
        ("shard-imagenet PICTURES OUT --short-side -256", "--short-side is -256"),
        ("shard-imagenet PICTURES OUT --short-side 15", "Use 16 or more"),
        (
            "shard-imagenet PICTURES OUT --max-side 200 --short-side 201",
            "--short-side is 201, more than --max-side, which is 200",
        ),
        ("shard-imagenet PICTURES OUT --samples-per-shard 0", "--samples-per-shard is 0"),
        ("shard-imagenet PICTURES OUT --seed -1", "--seed is -1"),
        ("shard-imagenet PICTURES OUT --workers -1", "--workers is -1"),
        ("verify-shards PICTURES --workers -2", "--workers is -2"),
        ("verify-shards PICTURES --sample -3", "--sample is -3"),
        ("index-shards PICTURES --workers -4", "--workers is -4"),
        ("shard-imagenet PICTURES OUT --val OUT", "out"),
        ("shard-imagenet PICTURES gs://bucket/set", "gs://bucket/set"),
        ("verify-shards OUT", "out"),
        ("verify-shards PICTURES", "pictures"),
        ("index-shards OUT", "out"),
        ("index-shards PICTURES", "pictures"),
        ("train --data s3:/bucket/set --out OUT --budget 1k", "s3:/bucket/set"),
    ],
)
def test_bad_input_is_named(
    capsys: pytest.CaptureFixture[str], pictures: Path, tmp_path: Path, command: str, named: str
) -> None:
    places = {"PICTURES": str(pictures), "OUT": str(tmp_path / "out")}
    code, _, err = run(capsys, *(places.get(word, word) for word in command.split()))
    assert code == 2 and named in err and "Traceback" not in err
    assert not list((tmp_path / "out").glob("*.tar"))


def test_a_run_finds_its_data_from_another_folder(
    capsys: pytest.CaptureFixture[str],
    shard_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(shard_dir.parent)
    options = "--budget 20 --model vit_tiny_patch16_224 --batch 8 --head-hidden 16 --no-baseline"
    out = tmp_path / "run"
    code, _, err = run(
        capsys, "train", "--data", shard_dir.name, "--out", out, *options.split(), "--device", "cpu"
    )
    assert code == 0, err
    assert json.loads((out / "config.json").read_text())["data"] == str(shard_dir)
    monkeypatch.chdir(tmp_path)
    code, text, err = run(capsys, "evaluate", out, "--json", "--device", "cpu")
    assert code == 0 and "trained" in text, err
