"""Inputs of a linear probe: the network's own features, or tokens of its last blocks.

Shapes: N pictures, L patch tokens, D width of the features.
"""

from typing import Any

import torch
from torch import Tensor, nn

from accelssl.errors import UserError
from accelssl.pipeline.loader import Tokens
from accelssl.train.evaluate.backbone import Backbone
from accelssl.train.evaluate.features import Extract
from accelssl.train.evaluate.linear_presets import LinearSettings

AT_ONCE = {"cpu": 64, "cuda": 256}
"""Pictures in a forward pass: a probe's whole batch may not fit into memory."""


def probe_features(backbone: Backbone, settings: LinearSettings) -> Extract:
    """Return the feature extractor for a probe: float32, no gradients, bf16 autocast on GPUs that
    have it.

    Raise UserError for block tokens of a network that is not a VisionTransformer with a CLS token.
    """
    device = next(backbone.parameters()).device
    extract = backbone if settings.blocks is None else _block_features(backbone, settings)
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported()

    @torch.no_grad()
    def extract_in_parts(tokens: Tokens) -> Tensor:
        most = AT_ONCE.get(device.type, AT_ONCE["cpu"])
        with torch.autocast(device.type, torch.bfloat16, enabled=has_bf16):
            parts = [extract(part).float() for part in _parts(tokens, most)]
        return torch.cat(parts)

    return extract_in_parts


def _parts(tokens: Tokens, most: int) -> list[Tokens]:
    values_NLV, keep_idx_NL = tokens.values_NLV, tokens.keep_idx_NL
    pairs = zip(torch.split(values_NLV, most), torch.split(keep_idx_NL, most), strict=True)
    return [Tokens(values, kept, tokens.p, tokens.grid) for values, kept in pairs]


def _block_features(backbone: Backbone, settings: LinearSettings) -> Extract:
    """Concatenate the CLS tokens of the last blocks after the final norm, oldest first. With
    `averages_patches`, append the mean of the last block's patch tokens."""
    vit: Any = backbone.model
    blocks = settings.blocks or 1
    if not hasattr(vit, "forward_intermediates") or getattr(vit, "cls_token", None) is None:
        raise UserError(
            f"--preset {settings.name} needs CLS tokens, which {backbone.name} does not have.",
            "Use --preset moco: it takes the features that the network gives.",
        )

    def extract(tokens: Tokens) -> Tensor:
        found: list[tuple[Tensor, Tensor]] = vit.forward_intermediates(
            backbone.images(tokens),
            indices=blocks,
            return_prefix_tokens=True,
            norm=True,
            output_fmt="NLC",
            intermediates_only=True,
        )
        parts = [prefix_NPD[:, 0] for _, prefix_NPD in found]
        if settings.averages_patches:
            parts.append(found[-1][0].mean(1))
        return torch.cat(parts, dim=1)

    return extract


def reset_last_norm(backbone: Backbone) -> None:
    """Set the scale of the norm before the features to 1 and its shift to 0.

    Heads that begin with a BatchNorm do not see that scale, so training lets it grow, and a
    classifier's rates no longer fit (ronghanghu/moco_v3_tpu, reset_last_ln). UserError for a
    network without such a norm.
    """
    norms = [getattr(backbone.model, name, None) for name in ("norm", "fc_norm")]
    found = [norm for norm in norms if isinstance(norm, nn.Module) and hasattr(norm, "weight")]
    if len(found) != 1 or not isinstance(found[0].weight, Tensor):
        raise UserError(
            f"{backbone.name} does not have exactly one norm before its features.",
            "Leave out --reset-last-norm.",
        )
    with torch.no_grad():
        found[0].weight.fill_(1)
        if isinstance(found[0].bias, Tensor):
            found[0].bias.zero_()
