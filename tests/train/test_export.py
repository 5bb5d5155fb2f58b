"""The exported file is timm's: it loads there by itself and gives the run's features."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import safe_open
from torch import nn
from torchvision.transforms.v2.functional import normalize

from accelssl import cli
from accelssl.errors import UserError
from accelssl.pipeline.evaluation import evaluation_batches
from accelssl.pipeline.loader import LoaderOptions
from accelssl.shards.shard_set import ShardSet
from accelssl.train.evaluate.backbone import open_backbone
from accelssl.train.export import export_encoder
from accelssl.train.loop import train
from accelssl.train.methods import METHODS
from accelssl.train.session import Session, start
from tests.train.any_run import CPU, config_on


def trained(shard_dir: Path, run: Path, algo: str = "simclr", **options: Any) -> Session:
    session = start(config_on(shard_dir, algo, **options), run, CPU)
    assert train(session, run) == 0
    return session


@pytest.fixture(scope="module")
def run(shard_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of SimCLR, trained to its end."""
    folder = tmp_path_factory.mktemp("exported") / "run"
    trained(shard_dir, folder, model="vit_tiny_patch16_224")
    return folder


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, "pt") as opened:
        found: dict[str, str] = opened.metadata()
    return found


@pytest.mark.parametrize("algo", METHODS)
def test_timm_loads_the_file_and_gives_the_features_of_the_trained_encoder(
    shard_dir: Path, tmp_path: Path, algo: str
) -> None:
    session = trained(shard_dir, tmp_path / "run", algo)
    file = tmp_path / "vit.safetensors"
    export_encoder(tmp_path / "run", file)
    model = timm.create_model(session.config.model, checkpoint_path=str(file), num_classes=0)
    pictures = torch.rand(3, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    mean, std = (
        [float(value) for value in metadata(file)[entry].split(",")] for entry in ("mean", "std")
    )
    normalised = normalize(pictures, mean, std)
    values_NLV = nn.functional.unfold(normalised, 16, stride=16).mT
    keep_idx_NL = torch.arange(196).repeat(3, 1)
    encoder = session.objective.evaluated.eval()
    with torch.no_grad():
        expected = encoder(values_NLV, keep_idx_NL, 16, 14)
        found = model.eval()(normalised)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_pictures_of_a_set_have_the_features_in_the_file_that_they_have_in_the_run(
    run: Path, shard_set: ShardSet, tmp_path: Path
) -> None:
    """Decoding, normalisation and all: by name from the file's metadata alone."""
    file = tmp_path / "vit.safetensors"
    export_encoder(run, file)
    (tokens, _), *_ = evaluation_batches(shard_set.split("val"), LoaderOptions(4, 0, CPU))
    of_run, of_file = open_backbone(run, None, None), open_backbone(None, file, None)
    assert torch.equal(of_run(tokens), of_file(tokens))
    assert of_file.pictures == of_run.pictures


def test_the_printed_line_loads_the_file(run: Path, tmp_path: Path) -> None:
    line = export_encoder(run, tmp_path / "vit.safetensors")
    model = eval(line, {"timm": timm})
    assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 192)
    taken = timm.data.resolve_model_data_config(model)  # type: ignore[no-untyped-call]
    assert taken["mean"] == (0.485, 0.456, 0.406) and taken["std"] == (0.229, 0.224, 0.225)
    assert metadata(tmp_path / "vit.safetensors")["load"] == line
    shown = timm.data.create_transform(**taken).transforms
    resized, cut = shown[:2]
    assert (resized.size, resized.interpolation.value, cut.size) == (256, "bicubic", (224, 224))


def test_the_command_prints_the_line_and_refuses_in_two_sentences(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "vit.safetensors"
    for code in (0, 2):  # then it exists
        sys.argv = ["accelssl", "export", str(run), str(file)]
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert (stopped.value.code or 0) == code
    out, err = capsys.readouterr()
    assert out.strip() == metadata(file)["load"]
    assert err.splitlines() == [
        f"error: {file} exists already.",
        "Add --force to replace it, or name another.",
    ]


def test_the_file_says_what_it_is(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "vit.safetensors"
    export_encoder(run, file)
    said = metadata(file)
    assert (said["model"], said["algo"], said["format"]) == ("vit_tiny_patch16_224", "simclr", "pt")
    assert 20 <= float(said["spent"]) < 24 and float(said["budget"]) == 20
    assert int(said["step"]) == 7  # of 8 images at 72/196 units each
    assert said["mean"] == "0.485,0.456,0.406" and said["std"] == "0.229,0.224,0.225"
    with safe_open(file, "pt") as opened:
        names = set(opened.keys())
    assert names == set(timm.create_model(said["model"], num_classes=0).state_dict())


def test_a_file_that_exists_is_replaced_only_if_asked(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "vit.safetensors"
    file.write_text("mine")
    with pytest.raises(UserError, match="--force"):
        export_encoder(run, file)
    assert file.read_text() == "mine"
    export_encoder(run, file, replaces=True)
    assert metadata(file)["algo"] == "simclr"


@pytest.mark.parametrize("name", ["vit.pth", "vit", "vit.safetensors.bak"])
def test_another_ending_is_refused_with_a_name_to_use(run: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"Call it .*\.safetensors") as refused:
        export_encoder(run, tmp_path / name)
    assert str(tmp_path) in refused.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_no_run_or_has_no_checkpoint_is_refused(
    shard_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        export_encoder(tmp_path, tmp_path / "vit.safetensors")
    start(config_on(shard_dir), tmp_path / "run", CPU)
    with pytest.raises(UserError, match="no checkpoint"):
        export_encoder(tmp_path / "run", tmp_path / "vit.safetensors")
    assert not (tmp_path / "vit.safetensors").exists()


def test_a_disk_that_is_full_leaves_the_file_that_was_there(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vit.safetensors"
    file.write_text("mine")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        export_encoder(run, file, replaces=True)
    assert file.read_text() == "mine" and list(tmp_path.iterdir()) == [file]


def test_a_place_that_cannot_be_written_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "taken.safetensors").mkdir()
    for file in (tmp_path / "missing" / "vit.safetensors", tmp_path / "taken.safetensors"):
        with pytest.raises(UserError, match="could not be written"):
            export_encoder(run, file, replaces=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken.safetensors"]
