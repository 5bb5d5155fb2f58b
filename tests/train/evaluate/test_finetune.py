"""Whole fine-tunings of a small ViT on small pictures."""

import os
import shutil
import signal
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

from accelssl.errors import UserError
from accelssl.shards.shard_set import ShardSet, open_shards
from accelssl.shards.write.shard_imagenet import shard_images
from accelssl.train.evaluate import finetune_state
from accelssl.train.evaluate.backbone import Pictures
from accelssl.train.evaluate.finetune import finetune
from accelssl.train.evaluate.finetune_data import evaluation_transform
from accelssl.train.evaluate.finetune_settings import FinetuneSettings, finetune_settings
from accelssl.train.evaluate.finetune_state import FinetuneState
from accelssl.train.evaluate.finetune_step import Trainee, train_step
from accelssl.train.evaluate.result_settings import changes
from accelssl.train.evaluate.tables import score_table
from tests.train.checkpoints.damage import flip_a_bit
from tests.train.checkpoints.stopping import terminate

CPU = torch.device("cpu")
TRAIN_STEP = "accelssl.train.evaluate.finetune.train_step"


@pytest.fixture
def vit() -> nn.Module:
    return backbone()


def backbone() -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = timm.create_model("test_vit", num_classes=0, img_size=64)
    return network


def small(preset: str, **options: Any) -> FinetuneSettings:
    given = {"epochs": 2, "batch": 8, "most_at_once": 4, "base_lr": 0.05} | options
    return finetune_settings(preset, **given)


def run(
    vit: nn.Module, shards: ShardSet, settings: FinetuneSettings, out: Path | None = None
) -> dict[str, Any]:
    return finetune(vit, shards, settings, CPU, out, False, workers=0)


@pytest.fixture
def stopped_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets a SIGTERM arrive while the step of that number is made."""

    def arrange(number: int) -> None:
        def step_and_stop(made: Any, step: int, pieces: Any) -> Tensor:
            if step == number:
                terminate()
            return train_step(made, step, pieces)

        monkeypatch.setattr(TRAIN_STEP, step_and_stop)

    return arrange


def timeless(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "seconds"}


@pytest.fixture(scope="module")
def red_and_blue(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    """Noise of two colours: 32 pictures for training, 24 others."""
    root, rng = tmp_path_factory.mktemp("colours"), np.random.default_rng(0)
    for split, count in (("train", 16), ("val", 12)):
        for channel, name in ((0, "red"), (2, "blue")):
            folder = root / "pictures" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 120, (40, 48, 3), dtype=np.uint8)
                pixels[..., channel] += 120
                Image.fromarray(pixels).save(folder / f"{i}.jpg", quality=95)
    shard_images(root / "pictures", root / "shards", workers=1)
    return open_shards(root / "shards")


def test_it_learns_to_tell_two_colours(vit: nn.Module, red_and_blue: ShardSet) -> None:
    settings = small("deit", epochs=6, base_lr=0.02, rand_augment="")
    result = run(vit, red_and_blue, settings)
    assert result["history"][0]["loss"] > result["history"][-1]["loss"]
    assert result["top1"] > 90 and result["top5"] == 100
    assert result["right1"] == round(result["top1"] * 24 / 100) and result["images"] == 24


@pytest.mark.parametrize("preset", ["deit", "mae"])
def test_a_result_tells_what_was_done(
    vit: nn.Module, shard_set: ShardSet, tmp_path: Path, preset: str
) -> None:
    before = {name: value.clone() for name, value in vit.state_dict().items()}
    result = run(vit, shard_set, small(preset), tmp_path / "finetune")
    assert result["preset"] == preset and (result["epochs"], result["batch"]) == (2, 8)
    assert (result["images"], result["trained_on"], result["classes"]) == (20, 40, 4)
    changed = changes({"protocol": "finetune"} | result)
    assert changed == ["2 epochs", "batch 8", "rate 0.05"]
    assert [line["epoch"] for line in result["history"]] == [1, 2]
    assert result["best_top1"] == max(line["top1"] for line in result["history"])
    assert result["top1"] == result["history"][-1]["top1"] == 5 * result["right1"]
    assert ("ema_top1" in result) == (preset == "deit")
    assert all(torch.equal(value, before[name]) for name, value in vit.state_dict().items())


def test_the_bar_and_the_table_end_with_the_last_epoch_and_say_which_was_best(
    vit: nn.Module,
    shard_set: ShardSet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    counts = iter([(8, 10), (5, 10)])  # of 20
    monkeypatch.setattr("accelssl.train.evaluate.finetune.count_right", lambda *_: next(counts))
    result = finetune(vit, shard_set, small("mae"), CPU, None, True, workers=0)
    assert "epoch 2 of 2  top1 25.0% after epoch 2" in capsys.readouterr().err
    table = score_table({"protocol": "finetune"} | result)
    assert "top-1 25.0%: 5 of 20, after the last epoch" in table  # of four classes no top-5
    table = score_table({"protocol": "finetune"} | result | {"classes": 6})
    assert "top-1 25.0%, top-5 50.0%: 5 and 10 of 20, after the last epoch" in table
    assert "best top-1 40.0%, after epoch 1:" in table


def test_accuracies_are_those_of_the_weights_it_leaves(
    vit: nn.Module, shard_set: ShardSet, tmp_path: Path
) -> None:
    """Counted by hand, picture by picture, with the plain timm network of the checkpoint."""
    result = run(vit, shard_set, small("deit", epochs=3), tmp_path)
    state = torch.load(tmp_path / finetune_state.NAME, weights_only=True)
    network = timm.create_model("test_vit", num_classes=4, img_size=64).eval()
    network.load_state_dict(state["network"])
    transform = evaluation_transform(Pictures(64))
    split, right = shard_set.split("val"), 0
    for i in range(len(split)):
        encoded, label = split.read(i)
        with torch.no_grad(), Image.open(BytesIO(encoded)) as picture:
            right += int(network(transform(picture)[None]).argmax()) == label
    assert result["right1"] == right


@pytest.fixture(scope="module", params=["deit", "mae"])
def whole(
    request: pytest.FixtureRequest, shard_set: ShardSet, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, dict[str, Any]]:
    """A preset, a fine-tuning that nothing disturbed, and its result."""
    folder = tmp_path_factory.mktemp("whole")
    return request.param, folder, run(backbone(), shard_set, small(request.param), folder)


@pytest.mark.parametrize("step", [2, 4, 5])
def test_one_that_was_stopped_goes_on_to_the_identical_end(
    vit: nn.Module,
    shard_set: ShardSet,
    tmp_path: Path,
    stopped_at: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    whole: tuple[str, Path, dict[str, Any]],
    step: int,
) -> None:
    """Within an epoch, after its last step, and after the first step of the next."""
    preset, folder, expected = whole
    parted = tmp_path / "parted"
    stopped_at(step)
    with pytest.raises(SystemExit) as ended:
        run(vit, shard_set, small(preset), parted)
    assert ended.value.code == 128 + signal.SIGTERM
    state = torch.load(parted / finetune_state.NAME, weights_only=True)
    assert state["step"] == step + 1 and state["result"] is None
    monkeypatch.undo()
    assert timeless(run(vit, shard_set, small(preset), parted)) == timeless(expected)
    ours, theirs = (
        torch.load(path / finetune_state.NAME, weights_only=True) for path in (parted, folder)
    )
    for part in ("network", "ema"):
        assert ours[part].keys() == theirs[part].keys()
        assert all(torch.equal(ours[part][name], theirs[part][name]) for name in theirs[part])
    assert len(theirs["ema"]) == (len(theirs["network"]) if preset == "deit" else 0)


def test_one_that_is_through_is_not_done_again(
    vit: nn.Module, shard_set: ShardSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small("mae", epochs=1)
    first = run(vit, shard_set, settings, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(TRAIN_STEP, None)
        assert run(vit, shard_set, settings, tmp_path) == first
    other = run(vit, shard_set, small("mae", epochs=1, seed=1), tmp_path)
    assert other["history"] != first["history"]


def test_an_unfinished_one_does_not_make_room_for_another(
    vit: nn.Module, shard_set: ShardSet, tmp_path: Path, stopped_at: Callable[[int], None]
) -> None:
    stopped_at(1)
    with pytest.raises(SystemExit):
        run(vit, shard_set, small("mae"), tmp_path)
    with pytest.raises(UserError, match=r"unfinished .* --epochs 2, not 3"):
        run(vit, shard_set, small("mae", epochs=3), tmp_path)
    with torch.no_grad():
        next(vit.parameters()).add_(1)
    with pytest.raises(UserError, match=r"unfinished .* weights"):
        run(vit, shard_set, small("mae"), tmp_path)


def test_pieces_of_a_batch_add_up_to_its_gradient(
    vit: nn.Module, shard_set: ShardSet, tmp_path: Path
) -> None:
    """Without random mixing and depth, four pieces train as one does, up to rounding."""
    plain = {"mixup": 0.0, "cutmix": 0.0, "drop_path": 0.0, "epochs": 1, "base_lr": 1e-3}
    losses = []
    for at_once in (8, 2):
        settings = small("mae", **plain, most_at_once=at_once)
        assert settings.pieces == 8 // at_once
        losses.append(run(vit, shard_set, settings)["history"][0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_loss_that_is_not_finite_stops_it(vit: nn.Module, shard_set: ShardSet) -> None:
    with torch.no_grad():
        next(vit.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match=r"became nan near step 1\b.*lower --lr"):
        run(vit, shard_set, small("mae"))


@pytest.mark.parametrize("diverges", ["weights", "average"])
def test_logits_that_are_not_finite_are_no_guesses(
    vit: nn.Module, shard_set: ShardSet, monkeypatch: pytest.MonkeyPatch, diverges: str
) -> None:
    """After the last step of the second epoch, whose loss is still finite."""

    def step_and_diverge(made: Trainee, step: int, pieces: Any) -> Tensor:
        loss = train_step(made, step, pieces)
        if step == 9:
            network = made.network if diverges == "weights" else made.ema.module  # type: ignore[union-attr]
            with torch.no_grad():
                next(network.parameters()).fill_(float("inf"))
        return loss

    monkeypatch.setattr(TRAIN_STEP, step_and_diverge)
    with pytest.raises(UserError, match=r"diverged in epoch 2\. .*lower --lr"):
        run(vit, shard_set, small("deit"))


def test_what_cannot_be_fine_tuned_is_refused(
    vit: nn.Module,
    shard_set: ShardSet,
    shard_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match="64 is more than the 40 training pictures"):
        run(vit, shard_set, small("deit", batch=64))
    with pytest.raises(UserError, match="not one of timm's VisionTransformers"):
        run(nn.Linear(2, 2), shard_set, small("deit"))
    pictures = tmp_path / "pictures"
    shutil.copytree(shard_dir.parent / "pictures" / "train", pictures / "train")
    shard_images(pictures, tmp_path / "shards", workers=1)
    with pytest.raises(UserError, match="no val split"):
        run(vit, open_shards(tmp_path / "shards"), small("deit"))
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    for name, value in (("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="ranks are not connected"):
        run(vit, shard_set, small("deit"))


def test_a_full_disk_is_said_in_plain_words_and_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finetune_state.save(tmp_path, FinetuneState({"seed": 1}, step=3))

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        finetune_state.save(tmp_path, FinetuneState({"seed": 1}, step=4))
    assert finetune_state.load(tmp_path, {"seed": 1}).step == 3
    assert not list(tmp_path.glob("*.part"))


def test_a_file_that_is_no_fine_tuning_is_not_read_as_one(tmp_path: Path) -> None:
    (tmp_path / finetune_state.NAME).write_bytes(b"something else")
    with pytest.raises(UserError, match="is damaged"):
        finetune_state.load(tmp_path, {})


def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    weights = {"w": torch.ones(9)}
    finetune_state.save(tmp_path, FinetuneState({}, step=3, network=weights))
    flip_a_bit(tmp_path / finetune_state.NAME, "data/0")
    with pytest.raises(UserError, match=r"is damaged .*remove"):
        finetune_state.load(tmp_path, {})
