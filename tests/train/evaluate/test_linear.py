"""Linear accuracy on a shard set: what features are, what is trained and what is not."""

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from accelssl.errors import UserError
from accelssl.pipeline.evaluation import evaluation_batches
from accelssl.pipeline.loader import LoaderOptions, Tokens
from accelssl.shards.shard_set import ShardSet
from accelssl.train.evaluate.backbone import Backbone, whole_pictures
from accelssl.train.evaluate.block_features import AT_ONCE, probe_features, reset_last_norm
from accelssl.train.evaluate.features import Extract, features_of_random_crops, pixel_features
from accelssl.train.evaluate.linear import linear_scores
from accelssl.train.evaluate.linear_presets import LinearSettings, dino, moco
from accelssl.train.evaluate.neighbours import neighbours_of
from accelssl.train.evaluate.tables import score_table

CPU = torch.device("cpu")
OPTIONS = LoaderOptions(batch=8, seed=3, device=CPU)
QUICK = LinearSettings("test", 0.1, (0.1, 1.0), epochs=3, batch=16)


def small_vit(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    small: dict[str, Any] = {"depth": 6, "embed_dim": 48, "num_heads": 3, "num_classes": 0}
    return timm.create_model("vit_tiny_patch16_224", **(small | options))


@pytest.fixture
def backbone() -> Backbone:
    return Backbone("vit_tiny_patch16_224", small_vit())


@pytest.fixture(scope="module")
def tokens(shard_set: ShardSet) -> Tokens:
    return next(evaluation_batches(shard_set.split("val"), OPTIONS))[0]


def block_outputs(vit: Any, images: Tensor) -> list[Tensor]:
    """What leaves each block, and then passes the last norm."""
    outputs: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda *call: outputs.append(call[2])) for block in vit.blocks
    ]
    with torch.no_grad():
        vit.forward_features(images)
        for hook in hooks:
            hook.remove()
        return [vit.norm(output) for output in outputs]


def test_dinos_features_are_cls_tokens_of_the_last_blocks(
    backbone: Backbone, tokens: Tokens
) -> None:
    outputs = block_outputs(backbone.model, backbone.images(tokens))
    four = probe_features(backbone, dino(384))(tokens)
    torch.testing.assert_close(four, torch.cat([out[:, 0] for out in outputs[-4:]], 1))
    one = probe_features(backbone, dino(768))(tokens)
    torch.testing.assert_close(one, torch.cat([outputs[-1][:, 0], outputs[-1][:, 1:].mean(1)], 1))
    plain = probe_features(backbone, moco())(tokens)
    torch.testing.assert_close(plain, outputs[-1][:, 0])
    assert not plain.requires_grad and plain.dtype == torch.float32


def test_registers_are_no_patches(tokens: Tokens) -> None:
    backbone = Backbone("with registers", small_vit(reg_tokens=4))
    last = block_outputs(backbone.model, backbone.images(tokens))[-1]
    found = probe_features(backbone, dino(768))(tokens)
    torch.testing.assert_close(found, torch.cat([last[:, 0], last[:, 5:].mean(1)], 1))


def test_a_batch_in_parts_gives_the_same_features(
    backbone: Backbone, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = probe_features(backbone, moco())(tokens)
    monkeypatch.setitem(AT_ONCE, "cpu", 3)
    torch.testing.assert_close(probe_features(backbone, moco())(tokens), whole)


def test_a_network_without_cls_tokens_takes_no_preset_of_blocks() -> None:
    network = timm.create_model("test_convnext", num_classes=0)
    with pytest.raises(UserError, match="test_convnext does not have"):
        probe_features(Backbone("test_convnext", network), dino(768))


@pytest.mark.parametrize("crops", ["central", "2", "fresh"])
def test_classes_that_differ_in_colour_are_told_apart_and_no_weight_changes(
    backbone: Backbone, shard_set: ShardSet, crops: str
) -> None:
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    settings = replace(QUICK, crops=crops, normalises=True)
    extracts = {"trained": probe_features(backbone, settings), "pixels": pixel_features}
    scores = linear_scores(shard_set, extracts, settings, OPTIONS)
    assert scores["pixels"]["top1"] >= 75 and scores["trained"]["top1"] >= 75
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert not backbone.training and all(p.grad is None for p in backbone.parameters())
    best = scores["trained"]
    assert (best["of"], scores["train"], scores["val"], scores["classes"]) == (20, 40, 20, 4)
    assert best["top1"] == 100 * best["right1"] / 20 and best["right5"] == 20
    assert [found["rate"] for found in best["rates"]] == [0.1, 1.0]
    assert best["right1"] == max(found["right1"] for found in best["rates"])
    assert scores["crops"] == crops


def test_a_batch_larger_than_the_set_is_the_whole_set(
    backbone: Backbone, shard_set: ShardSet
) -> None:
    for crops in ("central", "fresh"):
        settings = replace(QUICK, batch=1024, epochs=1, crops=crops)
        scores = linear_scores(shard_set, {"pixels": pixel_features}, settings, OPTIONS)
        assert scores["batch"] == 40


def test_random_crops_are_new_in_every_epoch_and_have_the_labels_of_their_pictures(
    shard_set: ShardSet,
) -> None:
    train = shard_set.split("train")
    known = sorted(train.read(i)[1] for i in range(40))
    extracts = {"colours": lambda tokens: whole_pictures(tokens).mean((2, 3))}
    epochs = [
        list(batches)
        for batches in features_of_random_crops(train, extracts, replace(OPTIONS, batch=20), 2)
    ]
    assert [[len(labels) for _, labels in epoch] for epoch in epochs] == [[20, 20]] * 2
    colours = []
    for epoch in epochs:
        labels = torch.cat([labels for _, labels in epoch])
        found = torch.cat([found["colours"] for found, _ in epoch])
        assert sorted(labels.tolist()) == known
        # Classes 0 to 2 lean towards a colour each.
        means = torch.stack([found[labels == c].mean(0) for c in range(3)])
        assert means.argmax(0).tolist() == [0, 1, 2]
        colours.append(found[labels.argsort(stable=True)])
    assert not torch.allclose(colours[0], colours[1])


def test_a_reset_norm_is_plain_layer_norm(backbone: Backbone, tokens: Tokens) -> None:
    norm: Any = backbone.model.norm
    plain = nn.functional.layer_norm
    with torch.no_grad():
        norm.weight.mul_(7)
        norm.bias.add_(3)
    scaled = backbone(tokens)
    reset_last_norm(backbone)
    expected = plain((scaled - 3) / 7, (48,), eps=0)  # normalised once more it stays as it is
    torch.testing.assert_close(backbone(tokens), expected, rtol=1e-3, atol=1e-3)
    network = timm.create_model("test_byobnet", num_classes=0)
    with pytest.raises(UserError, match="test_byobnet"):
        reset_last_norm(Backbone("test_byobnet", network))


def test_a_rate_that_diverged_is_marked_and_is_not_the_best_one(
    shard_set: ShardSet,
) -> None:
    settings = replace(QUICK, rates=(1e38, 1.0), epochs=3)
    extracts: dict[str, Extract] = {"trained": pixel_features}
    found = linear_scores(shard_set, extracts, settings, OPTIONS)
    first, second = found["trained"]["rates"]
    assert first == {
        **{"rate": 1e38, "diverged": True},
        **{"top1": 0, "top5": 0, "right1": 0, "right5": 0},
    }
    assert not second["diverged"] and found["trained"]["rate"] == 1.0
    table = score_table(found | {"protocol": "linear"})
    shown = f"{'trained':14}{'-':>7}{second['top1']:7.1f}"
    assert shown in table and "diverged at this rate" in table
    with pytest.raises(UserError, match=r"'trained' diverged at every rate of 1e\+38\. .*--lrs"):
        linear_scores(shard_set, extracts, replace(settings, rates=(1e38,)), OPTIONS)


@pytest.mark.parametrize("lost", [float("nan"), float("inf"), 1e30])
def test_features_that_are_not_finite_are_refused_and_not_guessed_with(
    shard_set: ShardSet, lost: float
) -> None:
    """1e30 has no square in float32, and so no length to compare by."""

    def extract(tokens: Tokens) -> Tensor:
        found = pixel_features(tokens)
        found[-1, 5] = lost
        return found

    extracts: dict[str, Extract] = {"pixels": pixel_features, "mine": extract}
    with pytest.raises(UserError, match="network 'mine' are not finite"):
        neighbours_of(shard_set, extracts, OPTIONS)
    with pytest.raises(UserError, match="network 'mine' are not finite"):
        linear_scores(shard_set, extracts, QUICK, OPTIONS)
    epochs = features_of_random_crops(shard_set.split("train"), extracts, OPTIONS, 1)
    with closing(epochs), pytest.raises(UserError, match="'mine' are not finite"):
        next(next(epochs))
