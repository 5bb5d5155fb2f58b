"""The fine-tuned network (a timm VisionTransformer with a classifier), its optimizer and
learning rate."""

import hashlib
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2
from timm.scheduler.cosine_lr import CosineLRScheduler
from torch import nn

from accelssl.errors import UserError
from accelssl.train.evaluate.finetune_settings import FinetuneSettings

BETAS = (0.9, 0.999)
# Weights that a network with another pooling lacks or adds.
_HEAD, _NORM, _NORM_OF_MEAN = "head.", "norm.", "fc_norm."


@dataclass(frozen=True)
class VitArchitecture:
    """timm's name of a VisionTransformer and the side of its pictures in pixels."""

    name: str
    size: int


def architecture_of(vit: nn.Module) -> VitArchitecture:
    """Return the architecture of `vit`. Raise UserError unless timm made `vit` as a
    VisionTransformer for square pictures."""
    name = (getattr(vit, "pretrained_cfg", None) or {}).get("architecture")
    if not isinstance(vit, VisionTransformer) or not name:
        raise UserError(
            f"{name or type(vit).__name__} is not one of timm's VisionTransformers.",
            "Fine-tune one of those, or evaluate with --protocol nn or linear.",
        )
    height, width = vit.patch_embed.img_size or (0, 0)
    if height != width:
        raise UserError(f"{name} takes pictures of {height} x {width} px.", "Use a square one.")
    return VitArchitecture(str(name), int(height))


def classifier(vit: nn.Module, settings: FinetuneSettings, classes: int) -> VisionTransformer:
    """Build a network like `vit`, with its weights, stochastic depth and a new head.

    All parameters are trained, also patch projection and positions. `vit` stays unchanged. Raise
    UserError when weights are missing, or there is no CLS token to classify by.
    """
    architecture = architecture_of(vit)
    if settings.pool == "token" and getattr(vit, "cls_token", None) is None:
        raise UserError(
            f"{architecture.name} has no CLS token to classify by.",
            "Use --preset mae, which takes the mean.",
        )
    network = timm.create_model(
        architecture.name,
        num_classes=classes,
        img_size=architecture.size,
        drop_path_rate=settings.drop_path,
        global_pool=settings.pool,
    )
    assert isinstance(network, VisionTransformer)
    weights = {k: v for k, v in vit.state_dict().items() if not k.startswith(_HEAD)}
    try:
        left = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        raise _unlike(architecture.name, " ".join(str(error).split())[:200]) from error
    wrong = [n for n in left.missing_keys if not n.startswith((_HEAD, _NORM, _NORM_OF_MEAN))]
    wrong += [n for n in left.unexpected_keys if not n.startswith((_NORM, _NORM_OF_MEAN))]
    if wrong:
        raise _unlike(architecture.name, ", ".join(wrong[:4]))
    assert isinstance(network.head, nn.Linear)
    nn.init.trunc_normal_(network.head.weight, std=settings.head_std)
    nn.init.zeros_(network.head.bias)
    return network.requires_grad_(True)


def _unlike(name: str, what: str) -> UserError:
    return UserError(
        f"The weights are not those of timm's {name} ({what}).",
        "Fine-tune a network that timm.create_model makes by its name alone.",
    )


def fingerprint(vit: nn.Module) -> str:
    """Return the SHA-256 of all weights, in hex."""
    digest = hashlib.sha256()
    for name, value in sorted(vit.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def adamw_by_layer(network: nn.Module, settings: FinetuneSettings) -> torch.optim.Optimizer:
    """Return AdamW with the lr_scale of each layer.

    No weight decay on biases, norms, positions and tokens. With layer_decay d the classifier has
    scale 1, block i of n has d^(n - i), counted from 0, and the layers before the blocks d^(n + 1).
    A final norm of the CLS token counts with the last block; MAE gives it 1.
    """
    on_gpu = next(network.parameters()).device.type == "cuda"
    options: dict[str, Any] = {"fused": True} if on_gpu else {}
    optimizer: torch.optim.Optimizer = create_optimizer_v2(
        network,
        "adamw",
        lr=settings.peak_lr,
        weight_decay=settings.weight_decay,
        layer_decay=None if settings.layer_decay == 1 else settings.layer_decay,
        betas=BETAS,
        **options,
    )
    return optimizer


class LearningRate:
    """The schedule of the learning rate of every group, by epochs; see FinetuneSettings."""

    def __init__(self, optimizer: torch.optim.Optimizer, settings: FinetuneSettings) -> None:
        self._moves_each_step = settings.moves_each_step
        warmup = settings.warmup_epochs
        self._schedule = CosineLRScheduler(
            optimizer,
            t_initial=settings.epochs - (warmup if settings.moves_each_step else 0),
            lr_min=settings.min_lr,
            warmup_t=warmup,
            warmup_lr_init=settings.start_lr,
            warmup_prefix=settings.moves_each_step,
        )

    def set(self, epoch: int, share: float) -> float:
        """Set and return the rate of layers of scale 1 at `share` (0 to 1) of `epoch`, counted
        from 0."""
        moment = epoch + share if self._moves_each_step else epoch
        self._schedule.step(moment)  # type: ignore[arg-type]
        return self.value

    @property
    def value(self) -> float:
        """Return the rate set last."""
        return max(float(group["lr"]) for group in self._schedule.optimizer.param_groups)
