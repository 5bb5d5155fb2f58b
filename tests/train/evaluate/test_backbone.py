"""What is evaluated: the encoder of a run, or weights from a file in any of timm's models."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision.transforms.v2.functional import normalize, resize

from accelssl.errors import UserError
from accelssl.pipeline.evaluation import evaluation_batches
from accelssl.pipeline.loader import LoaderOptions, Tokens
from accelssl.shards.shard_set import ShardSet
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.evaluate.backbone import Backbone, open_backbone, untrained, whole_pictures
from accelssl.train.gradients.checkpoints import kept_at, objective_at
from accelssl.train.session import start
from tests.train.any_run import CPU, config_on
from tests.train.checkpoints.damage import flip_a_bit

TINY = "vit_tiny_patch16_224"
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def tokens_of(pictures_NCHW: Tensor) -> Tokens:
    """Tokens of pictures in 0..1, cut by nn.Unfold, in the order of a convolution's weight."""
    normalised = normalize(pictures_NCHW, MEAN, STD)
    values_NLV = nn.functional.unfold(normalised, 16, stride=16).mT
    n, patches, _ = values_NLV.shape
    return Tokens(values_NLV, torch.arange(patches).repeat(n, 1), 16, round(patches**0.5))


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    return torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """A timm model with a classifier of seven classes, and its state dict in a file."""
    torch.manual_seed(2)
    model = timm.create_model(TINY, num_classes=7).eval()
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file(model.state_dict(), path)
    return model, path


def pooled(model: Any, pictures: Tensor) -> Tensor:
    """timm's own features, before the classifier."""
    with torch.no_grad():
        features: Tensor = model.forward_head(model.forward_features(pictures), pre_logits=True)
    return features


def test_tokens_of_whole_pictures_are_their_pixels_in_any_order(pictures: Tensor) -> None:
    tokens = tokens_of(pictures)
    assert torch.equal(whole_pictures(tokens), normalize(pictures, MEAN, STD))
    order = torch.stack([torch.randperm(196) for _ in pictures])
    shuffled = tokens.values_NLV.gather(1, order[..., None].expand_as(tokens.values_NLV))
    assert torch.equal(
        whole_pictures(Tokens(shuffled, order, 16, 14)), normalize(pictures, MEAN, STD)
    )


@pytest.mark.parametrize(("p", "kept"), [(16, 195), (30, 196)])
def test_tokens_of_parts_or_of_larger_patches_are_no_pictures(p: int, kept: int) -> None:
    tokens = Tokens(torch.zeros(1, kept, 768), torch.arange(kept)[None], p, 14)
    with pytest.raises(ValueError, match="not whole"):
        whole_pictures(tokens)


def test_a_file_of_weights_gives_the_features_of_its_model(
    tiny: tuple[nn.Module, Path], pictures: Tensor
) -> None:
    """vit_tiny_patch16_224 as timm has it takes colours between -1 and 1."""
    model, path = tiny
    found = open_backbone(None, path, TINY)
    expected = pooled(model, normalize(pictures, [0.5] * 3, [0.5] * 3))
    assert found.width == expected.shape[1]
    torch.testing.assert_close(found(tokens_of(pictures)), expected, atol=2e-5, rtol=1e-4)


def test_the_pictures_of_a_set_arrive_as_torchvision_would_give_them_to_the_model(
    tiny: tuple[nn.Module, Path], shard_set: ShardSet
) -> None:
    """What timm's mean and deviation make of uint8 pictures: to rounding the same."""
    (tokens, _), *_ = evaluation_batches(shard_set.split("val"), LoaderOptions(4, 0, CPU))
    images = open_backbone(None, tiny[1], TINY).images(tokens)
    levels = (images * 0.5 + 0.5) * 255
    assert (levels - levels.round()).abs().max() < 1e-3
    assert levels.round().min() >= 0 and levels.round().max() <= 255


def test_a_tag_in_the_name_chooses_the_colours_of_its_weights(
    tiny: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    found = open_backbone(None, tiny[1], f"{TINY}.augreg_in21k")
    assert found.pictures.mean == (0.5,) * 3
    model = timm.create_model("vit_small_patch16_224", num_classes=0)
    torch.save(model.state_dict(), tmp_path / "dino.pth")
    found = open_backbone(None, tmp_path / "dino.pth", "vit_small_patch16_224.dino")
    assert found.pictures.mean == tuple(MEAN) and found.pictures.std == tuple(STD)


@pytest.mark.parametrize(
    "name", ["resnet10t", "mobilenetv3_small_050", "convnext_atto", "vit_tiny_patch16_384"]
)
def test_models_of_other_kinds_and_sizes_give_what_timm_pools(
    tmp_path: Path, pictures: Tensor, name: str
) -> None:
    torch.manual_seed(3)
    model: Any = timm.create_model(name).eval()
    torch.save({"state_dict": model.state_dict()}, tmp_path / "weights.pth")
    found = open_backbone(None, tmp_path / "weights.pth", name)
    side = model.default_cfg["input_size"][-1]
    mean, std = model.default_cfg["mean"], model.default_cfg["std"]
    resized = resize(pictures, [side], interpolation=3, antialias=True)
    model.reset_classifier(0)
    with torch.no_grad():
        expected = model(normalize(resized, mean, std))
    assert found.width == expected.shape[1]
    scale = expected.abs().max().item()
    torch.testing.assert_close(found(tokens_of(pictures)), expected, atol=1e-3 * scale, rtol=1e-3)


@pytest.mark.parametrize("key", ["model", "state_dict", "model_ema"])
def test_weights_are_found_under_the_usual_keys_beside_the_options_of_a_training(
    tiny: tuple[nn.Module, Path], tmp_path: Path, pictures: Tensor, key: str
) -> None:
    model, path = tiny
    state = {f"module.{name}": value for name, value in model.state_dict().items()}
    torch.save({key: state, "args": argparse.Namespace(lr=1), "epoch": 3}, tmp_path / "w.pth")
    tokens = tokens_of(pictures)
    wrapped, plain = (open_backbone(None, f, TINY) for f in (tmp_path / "w.pth", path))
    assert torch.equal(wrapped(tokens), plain(tokens))


def test_positions_of_another_size_are_resampled_as_timm_does(tmp_path: Path) -> None:
    large = timm.create_model("vit_tiny_patch16_384")
    torch.save(large.state_dict(), tmp_path / "large.pth")
    found = open_backbone(None, tmp_path / "large.pth", TINY)
    large.set_input_size(img_size=224)  # type: ignore[operator]
    found_table, expected = found.model.pos_embed, large.pos_embed
    assert isinstance(found_table, Tensor) and isinstance(expected, Tensor)
    torch.testing.assert_close(found_table, expected)


def test_weights_that_do_not_match_are_named(tiny: tuple[nn.Module, Path], tmp_path: Path) -> None:
    state = tiny[0].state_dict()
    del state["norm.weight"]
    state["norm_of_mine.weight"] = torch.ones(192)
    torch.save(state, tmp_path / "odd.pth")
    with pytest.raises(UserError, match=r"odd\.pth") as refused:
        open_backbone(None, tmp_path / "odd.pth", TINY)
    assert "missing: norm.weight" in str(refused.value)
    assert "too much: norm_of_mine.weight" in str(refused.value)
    assert "head." not in str(refused.value)
    with pytest.raises(UserError, match=r"of another shape: .*and \d+ more"):
        open_backbone(None, tiny[1], "vit_small_patch16_224")
    with pytest.raises(UserError, match="do not match"):
        open_backbone(None, tiny[1], "resnet10t")


@pytest.mark.parametrize("lost", [float("nan"), float("inf"), 1e300])
def test_weights_that_are_not_finite_are_refused_by_name(
    tiny: tuple[nn.Module, Path], tmp_path: Path, lost: float
) -> None:
    """1e300 is finite in the file, but not in the network's float32."""
    state = dict(tiny[0].state_dict())
    state["norm.bias"] = state["norm.bias"].double()
    state["norm.bias"][-1] = lost
    torch.save(state, tmp_path / "lost.pth")
    with pytest.raises(UserError, match=r"lost\.pth .*not all weights are finite \(norm\.bias\)"):
        open_backbone(None, tmp_path / "lost.pth", TINY)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_weights_that_are_no_floats_are_refused_by_name(
    tiny: tuple[nn.Module, Path], tmp_path: Path, dtype: torch.dtype
) -> None:
    state = dict(tiny[0].state_dict())
    state["norm.weight"] = state["norm.weight"].to(dtype)
    torch.save(state, tmp_path / "whole.pth")
    with pytest.raises(UserError, match=r"no floats: norm\.weight\)"):
        open_backbone(None, tmp_path / "whole.pth", TINY)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_floats_of_other_widths_are_weights(
    tiny: tuple[nn.Module, Path], tmp_path: Path, dtype: torch.dtype
) -> None:
    state = {name: value.to(dtype) for name, value in tiny[0].state_dict().items()}
    torch.save(state, tmp_path / "other.pth")
    found = open_backbone(None, tmp_path / "other.pth", TINY).model.state_dict()
    assert all(torch.equal(value, state[name].float()) for name, value in found.items())


def test_a_damaged_file_of_weights_is_refused(tiny: tuple[nn.Module, Path], tmp_path: Path) -> None:
    torch.save(tiny[0].state_dict(), tmp_path / "w.pth")
    flip_a_bit(tmp_path / "w.pth", "data/3")
    with pytest.raises(UserError, match=r"w\.pth is damaged \(.*data/3\)\. .*again"):
        open_backbone(None, tmp_path / "w.pth", TINY)


def _garbage(folder: Path) -> Path:
    (folder / "w.safetensors").write_bytes(b"\x09" * 50)
    return folder / "w.safetensors"


def _text(folder: Path) -> Path:
    (folder / "w.pth").write_text("not weights")
    return folder / "w.pth"


def _module(folder: Path) -> Path:
    torch.save(nn.Linear(2, 2), folder / "w.pth")
    return folder / "w.pth"


def _parts(folder: Path) -> Path:
    torch.save({"student": {"a": torch.ones(1)}, "epoch": 3}, folder / "w.pth")
    return folder / "w.pth"


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (_garbage, "cannot be read"),
        (_text, "cannot be read"),
        (_module, "cannot be read"),
        (_parts, "student, epoch are no tensors"),
        (lambda folder: folder / "missing.pth", "no such file"),
        (lambda folder: folder / "missing.safetensors", "no such file"),
        (lambda folder: folder, "it is a folder"),
    ],
)
def test_files_that_hold_no_weights_are_refused(tmp_path: Path, write: Any, named: str) -> None:
    path = write(tmp_path)
    with pytest.raises(UserError, match=named) as refused:
        open_backbone(None, path, TINY)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("run", "weights", "model", "named"),
    [
        (None, None, None, "Neither"),
        (Path("run"), "w.pth", None, "Both"),
        (Path("run"), None, TINY, "--model"),
        (None, "TINY", None, "the model of its weights"),
        (None, "TINY", "vit_of_mine", "'vit_of_mine'"),
        (None, "TINY", f"{TINY}.no_such_tag", "no_such_tag"),
        (None, f"timm:{TINY}", "resnet18", "resnet18"),
        (None, "timm:vit_of_mine", None, "'vit_of_mine'"),
        (Path("missing"), None, None, "missing"),
    ],
)
def test_what_to_evaluate_must_be_named_once_and_exist(
    tiny: tuple[nn.Module, Path],
    run: Path | None,
    weights: str | None,
    model: str | None,
    named: str,
) -> None:
    with pytest.raises(UserError, match=named):
        open_backbone(run, tiny[1] if weights == "TINY" else weights, model)


def test_weights_that_timm_downloads_need_no_file(
    monkeypatch: pytest.MonkeyPatch, pictures: Tensor
) -> None:
    made: list[dict[str, Any]] = []
    create = timm.create_model

    def offline(name: str, **options: Any) -> nn.Module:
        made.append({"name": name, **options})
        model: nn.Module = create(name, num_classes=0)
        return model

    monkeypatch.setattr(timm, "create_model", offline)
    found = open_backbone(None, f"timm:{TINY}", None)
    assert made == [{"name": TINY, "pretrained": True, "num_classes": 0}]
    assert found(tokens_of(pictures)).shape == (2, 192)


@pytest.mark.parametrize("algo", ["simclr", "moco"])
def test_the_backbone_of_a_run_is_its_evaluated_encoder(
    shard_dir: Path, tmp_path: Path, pictures: Tensor, algo: str
) -> None:
    """Its own forward pass over tokens: timm's over pixels is another computation of the same."""
    session = start(config_on(shard_dir, algo), tmp_path / "run", CPU)
    with torch.no_grad():
        for number, (name, weights) in enumerate(session.objective.named_parameters()):
            if not name.endswith("pos_embed"):  # fixed: the encoder computes them
                weights.add_(0.02 * torch.randn(weights.shape, generator=_generator(number)))
    session.step, session.budget.spent = 3, 12.5
    session.save(tmp_path / "run")
    found = open_backbone(tmp_path / "run", None, None)
    tokens = tokens_of(pictures)
    with torch.no_grad():
        expected = session.objective.evaluated.eval()(tokens.values_NLV, tokens.keep_idx_NL, 16, 14)
    torch.testing.assert_close(found(tokens), expected, atol=1e-4, rtol=1e-4)
    assert found.origin == {"run": str(tmp_path / "run"), "step": 3, "spent": 12.5}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_metadata_of_another_program_says_nothing(
    tiny: tuple[nn.Module, Path], tmp_path: Path
) -> None:
    """Only files of accelssl export name their model and colours in it."""
    said = {"model": "resnet18", "mean": "[1, 2, 3]", "format": "pt"}
    save_file(tiny[0].state_dict(), tmp_path / "other.safetensors", said)
    with pytest.raises(UserError, match="the model of its weights"):
        open_backbone(None, tmp_path / "other.safetensors", None)
    found = open_backbone(None, tmp_path / "other.safetensors", TINY)
    assert found.pictures.mean == (0.5,) * 3 and found.origin["model"] == TINY


def test_a_run_without_a_checkpoint_is_told_to_train(shard_dir: Path, tmp_path: Path) -> None:
    start(config_on(shard_dir), tmp_path / "run", CPU)
    with pytest.raises(UserError, match="has no checkpoint"):
        open_backbone(tmp_path / "run", None, None)


def test_the_checkpoint_of_a_run_is_not_taken_for_weights(shard_dir: Path, tmp_path: Path) -> None:
    session = start(config_on(shard_dir), tmp_path / "run", CPU)
    session.save(tmp_path / "run")
    with pytest.raises(UserError, match="folder"):
        open_backbone(None, tmp_path / "run" / "checkpoint.pt", TINY)


def test_nothing_of_a_backbone_is_trained_and_its_layers_are_in_evaluation_mode(
    shard_dir: Path,
) -> None:
    config: TrainConfig = config_on(shard_dir)
    found: Backbone = untrained(config)
    assert not any(weights.requires_grad for weights in found.parameters())
    assert not any(module.training for module in found.modules())


@pytest.mark.parametrize(
    ("entry", "value", "named"),
    [
        ("mean", "a,b,c", "not three numbers"),
        ("mean", "0.5", "not three numbers"),
        ("mean", "0.5,0.5,nan", "not three numbers"),
        ("std", "0.2,0.2,0.2,0.2", "not three numbers above 0"),
        ("std", "0,0,0", "not three numbers above 0"),
        ("std", "0.2,0.2,-0.2", "not three numbers above 0"),
    ],
)
def test_colours_that_are_none_are_refused_by_what_the_file_says(
    tiny: tuple[nn.Module, Path], tmp_path: Path, entry: str, value: str, named: str
) -> None:
    said = {"accelssl": "0.1", "model": TINY, "mean": "0,0.5,-1", "std": "0.1,0.2,0.3"}
    path = tmp_path / "w.safetensors"
    save_file(tiny[0].state_dict(), path, said)
    found = open_backbone(None, path, None).pictures
    assert (found.mean, found.std) == ((0, 0.5, -1), (0.1, 0.2, 0.3))
    save_file(tiny[0].state_dict(), path, said | {entry: value})
    with pytest.raises(UserError, match=rf"w\.safetensors has {entry} '{value}', {named}\."):
        open_backbone(None, path, None)


def test_a_checkpoint_that_does_not_fit_its_configuration_names_a_tensor(
    shard_dir: Path, tmp_path: Path
) -> None:
    """As after an edit of both, or where the checkpoint did not note its model."""
    run = tmp_path / "run"
    start(config_on(shard_dir), run, CPU).save(run)
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    name = next(name for name in state["objective"] if name.endswith("norm.weight"))
    state["objective"][name] = torch.ones(7)
    torch.save(state, run / "checkpoint.pt")
    config = read_config(run / "config.json")
    (kept,) = kept_at(run, config, (0.0,))
    for read in (
        lambda: open_backbone(run, None, None),
        lambda: objective_at(run, config, replace(kept, name="checkpoint.pt")),
    ):
        with pytest.raises(UserError, match=r"does not fit .*size mismatch for .*norm\.weight"):
            read()
