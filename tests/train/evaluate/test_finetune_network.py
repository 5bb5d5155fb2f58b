"""The fine-tuned network, its groups of parameters and its learning rate, against formulas."""

import math
from typing import Any

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from accelssl.errors import UserError
from accelssl.model.vit import Encoder
from accelssl.pipeline.compress import reference
from accelssl.train.evaluate.finetune_network import (
    LearningRate,
    adamw_by_layer,
    classifier,
    fingerprint,
)
from accelssl.train.evaluate.finetune_settings import FinetuneSettings, deit, finetune_settings, mae

CLASSES = 3


def small(**options: Any) -> VisionTransformer:
    """A ViT of 6 blocks and width 64, for 64 px; its positions and norm are none it starts with."""
    torch.manual_seed(1)
    vit = timm.create_model("test_vit", num_classes=0, img_size=64, **options)
    assert isinstance(vit, VisionTransformer)
    with torch.no_grad():
        for parameter in vit.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    vit.patch_embed.requires_grad_(False)
    return vit


def head_weight(network: VisionTransformer) -> Tensor:
    assert isinstance(network.head, nn.Linear)
    return network.head.weight.detach()


def groups_by_name(settings: FinetuneSettings) -> dict[str, dict[str, Any]]:
    network = classifier(small(), settings, CLASSES)
    names = {parameter: name for name, parameter in network.named_parameters()}
    groups = adamw_by_layer(network, settings).param_groups
    return {names[parameter]: group for group in groups for parameter in group["params"]}


def test_the_network_begins_as_the_backbone_with_a_new_classifier() -> None:
    vit = small()
    network = classifier(vit, deit(), CLASSES).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = vit.eval()(images) @ head_weight(network).T
        assert torch.allclose(network(images), expected, atol=1e-6)
    rates = [getattr(block.drop_path1, "drop_prob", 0) for block in network.blocks]
    assert rates == pytest.approx([0.1 * i / 5 for i in range(6)])
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert not any(p.requires_grad for p in vit.patch_embed.parameters())


def test_its_features_are_those_of_pretraining() -> None:
    """The project's encoder sees the same pictures as tokens."""
    encoder = Encoder("vit_tiny_patch16_224").eval()
    images, all_196 = torch.randn(2, 3, 224, 224), torch.arange(14**2).repeat(2, 1)
    network = classifier(encoder.vit, deit(), CLASSES).eval()
    with torch.no_grad():
        tokens = reference.shrink(reference.kept_patches(images, all_196, 16))
        expected = encoder(tokens, all_196, 16, 14) @ head_weight(network).T
        assert torch.allclose(network(images), expected, atol=1e-5)


def test_the_mean_of_the_patch_tokens_has_a_norm_of_its_own() -> None:
    vit = small()
    network = classifier(vit, mae(), CLASSES).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        before_norm = vit.blocks(vit._pos_embed(vit.patch_embed(images)))
        mean = before_norm[:, 1:].mean(1)
        expected = nn.functional.layer_norm(mean, (64,), eps=1e-6) @ head_weight(network).T
        assert torch.allclose(network(images), expected, atol=1e-6)
    assert float(head_weight(network).std()) == pytest.approx(2e-5, rel=0.2)


@pytest.mark.parametrize("settings", [deit(), mae()])
def test_biases_norms_positions_and_tokens_do_not_decay(settings: FinetuneSettings) -> None:
    groups = groups_by_name(settings)
    network = classifier(small(), settings, CLASSES)
    assert groups.keys() == dict(network.named_parameters()).keys()
    for name, parameter in network.named_parameters():
        is_free = parameter.ndim == 1 or name in ("pos_embed", "cls_token")
        assert groups[name]["weight_decay"] == (0 if is_free else 0.05), name


def test_each_layer_has_its_share_of_the_rate() -> None:
    """The formula of facebookresearch/mae, util/lr_decay.py: decay^(layers - number)."""
    layers = 6 + 1

    def number(name: str) -> int:
        if name in ("cls_token", "pos_embed") or name.startswith("patch_embed"):
            return 0
        return int(name.split(".")[1]) + 1 if name.startswith("blocks") else layers

    for name, group in groups_by_name(mae()).items():
        assert group["lr_scale"] == pytest.approx(0.65 ** (layers - number(name))), name
    assert not any("lr_scale" in group for group in groups_by_name(deit()).values())


def rates(settings: FinetuneSettings) -> LearningRate:
    return LearningRate(adamw_by_layer(classifier(small(), settings, CLASSES), settings), settings)


def test_deits_rate_changes_each_epoch_along_warm_up_and_cosine() -> None:
    rate = rates(deit())
    for epoch in (0, 1, 4, 5, 6, 75, 149):
        warming = 1e-6 + (1e-3 - 1e-6) * epoch / 5
        cosine = 1e-5 + (1e-3 - 1e-5) * (1 + math.cos(math.pi * epoch / 150)) / 2
        expected = warming if epoch < 5 else cosine
        for share in (0.0, 0.5, 0.99):
            assert rate.set(epoch, share) == pytest.approx(expected, rel=1e-9)


def test_maes_rate_changes_each_step_and_its_cosine_begins_after_warm_up() -> None:
    rate = rates(mae())
    for moment in (0.0, 0.25, 2.5, 4.75, 5.0, 5.5, 52.5, 99.75):
        cosine = 1e-6 + (2e-3 - 1e-6) * (1 + math.cos(math.pi * (moment - 5) / 95)) / 2
        expected = 2e-3 * moment / 5 if moment < 5 else cosine
        assert rate.set(int(moment), moment % 1) == pytest.approx(expected, rel=1e-9)


def test_layers_keep_their_share_of_every_rate() -> None:
    network = classifier(small(), mae(), CLASSES)
    optimizer = adamw_by_layer(network, mae())
    peak = LearningRate(optimizer, mae()).set(20, 0.5)
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(peak * group["lr_scale"])


def test_a_fingerprint_tells_weights_apart() -> None:
    vit, same = small(), small()
    assert fingerprint(vit) == fingerprint(same)
    with torch.no_grad():
        next(same.parameters()).flatten()[0] += 1e-6
    assert fingerprint(vit) != fingerprint(same)


def test_other_networks_are_refused() -> None:
    with pytest.raises(UserError, match="resnet18 is not one of timm's VisionTransformers"):
        classifier(timm.create_model("resnet18"), deit(), CLASSES)
    with pytest.raises(UserError, match="Linear is not one"):
        classifier(nn.Linear(2, 2), deit(), CLASSES)
    without_token = timm.create_model("test_vit2", img_size=64)
    with pytest.raises(UserError, match="no CLS token"):
        classifier(without_token, deit(), CLASSES)
    assert classifier(without_token, mae(), CLASSES).num_classes == CLASSES
    with pytest.raises(UserError, match="not those of timm's test_vit"):
        classifier(small(depth=7), deit(), CLASSES)


def test_a_shorter_fine_tuning_still_ends_at_the_lowest_rate() -> None:
    settings = finetune_settings("mae", epochs=1)
    assert rates(settings).set(0, 1 - 1e-9) == pytest.approx(settings.min_lr)
