"""One step of fine-tuning, and counting correct predictions.

Shapes: N images of a piece, C classes.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist
from timm.data.mixup import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.models.vision_transformer import VisionTransformer
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from accelssl.errors import UserError
from accelssl.train.evaluate.finetune_data import Batch, FinetunePurpose, seed_draws
from accelssl.train.evaluate.finetune_network import LearningRate, adamw_by_layer, classifier
from accelssl.train.evaluate.finetune_settings import FinetuneSettings
from accelssl.train.evaluate.finetune_state import FinetuneState
from accelssl.train.ranks.distributed import Ranks

GUESSES = 5


@dataclass
class Trainee:
    """The objects that a step changes. replica: the network, on several ranks wrapped to average
    gradients."""

    settings: FinetuneSettings
    device: torch.device
    ranks: Ranks
    network: VisionTransformer
    replica: nn.Module
    optimizer: torch.optim.Optimizer
    rate: LearningRate
    mixup: Mixup
    criterion: nn.Module
    ema: ModelEmaV3 | None

    def note(self, state: FinetuneState) -> None:
        """Put references to weights and moments into `state`, not copies."""
        state.network = self.network.state_dict()
        state.optimizer = self.optimizer.state_dict()
        state.ema = self.ema.module.state_dict() if self.ema else {}


def begin(
    vit: nn.Module,
    classes: int,
    settings: FinetuneSettings,
    device: torch.device,
    state: FinetuneState,
    ranks: Ranks,
    is_compiled: bool | None,
) -> Trainee:
    """Build a network with the weights of `vit`, or with those of `state` to resume."""
    seed_draws(FinetunePurpose.HEAD, settings.seed)
    network = classifier(vit, settings, classes).to(device)
    ema = ModelEmaV3(network, settings.ema_decay) if settings.ema_decay else None
    optimizer = adamw_by_layer(network, settings)
    rate = LearningRate(optimizer, settings)
    if state.step:
        network.load_state_dict(state.network)
        optimizer.load_state_dict(state.optimizer)
        if ema:
            ema.module.load_state_dict(state.ema)
    if device.type == "cuda" if is_compiled is None else is_compiled:
        network.compile(dynamic=False)
    replica = DistributedDataParallel(network) if ranks.world > 1 else network
    return Trainee(
        settings,
        device,
        ranks,
        network,
        replica,
        optimizer,
        rate,
        mixing(settings, classes),
        SoftTargetCrossEntropy(),  # type: ignore[no-untyped-call]
        ema,
    )


def mixing(settings: FinetuneSettings, classes: int) -> Mixup:
    """Mix and smooth images_NCHW and labels_N; return images_NCHW and targets_NC that sum to 1."""
    mixes = settings.mixup > 0 or settings.cutmix > 0
    return Mixup(  # type: ignore[no-untyped-call]
        settings.mixup,
        settings.cutmix,
        prob=1.0 if mixes else 0.0,
        switch_prob=settings.switch,
        label_smoothing=settings.smoothing,
        num_classes=classes,
    )


def train_step(trainee: Trainee, step: int, pieces: Iterator[Batch]) -> Tensor:
    """Train on the next batch, piece by piece. Return the mean loss over all ranks, on the
    device."""
    settings, ranks = trainee.settings, trainee.ranks
    trainee.network.train()
    numbers = range(ranks.rank, settings.pieces, ranks.world)
    total = torch.zeros((), device=trainee.device)
    for number in numbers:
        images_NCHW, labels_N = _on(trainee.device, next(pieces))
        seed_draws(FinetunePurpose.MIXING, settings.seed, step, number)
        images_NCHW, targets_NC = trainee.mixup(images_NCHW, labels_N)
        with _gradients_shared(trainee.replica, at_once=number == numbers[-1]):
            with _autocast(trainee.device):
                logits_NC = trainee.replica(images_NCHW)
            loss = trainee.criterion(logits_NC.float(), targets_NC) / len(numbers)
            loss.backward()
        total += loss.detach()
    trainee.optimizer.step()
    trainee.optimizer.zero_grad(set_to_none=True)
    if trainee.ema:
        trainee.ema.update(trainee.network)
    if ranks.world > 1:
        dist.all_reduce(total)
        total /= ranks.world
    return total


@torch.no_grad()
def count_right(
    trainee: Trainee, network: nn.Module, pieces: Iterator[Batch], count: int, epoch: int
) -> tuple[int, int]:
    """Count the pictures that `network` gets right with one guess and with five, over all ranks.

    Raise UserError on all ranks if logits are not finite.
    """
    network.eval()
    found = torch.zeros(3, dtype=torch.int64, device=trainee.device)
    # Do not compile the blocks again for counting.
    with torch.compiler.set_stance("force_eager"), _autocast(trainee.device):
        for piece in islice(pieces, count):
            images_NCHW, labels_N = _on(trainee.device, piece)
            logits_NC = network(images_NCHW).float()
            guesses = logits_NC.topk(min(GUESSES, logits_NC.shape[1])).indices
            hits = guesses == labels_N[:, None]
            found += torch.stack([hits[:, 0].sum(), hits.sum(), (~logits_NC.isfinite()).sum()])
    if trainee.ranks.world > 1:
        dist.all_reduce(found)
    first, fifth, lost = found.tolist()
    if lost:
        raise UserError(f"Fine-tuning diverged in epoch {epoch}.", "Use a lower --lr.")
    return first, fifth


def _on(device: torch.device, batch: Batch) -> Batch:
    images_NCHW, labels_N = batch
    return images_NCHW.to(device, non_blocking=True), labels_N.to(device, non_blocking=True)


def _autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def _gradients_shared(replica: nn.Module, *, at_once: bool) -> AbstractContextManager[None]:
    """Let ranks average their gradients after the last piece of a batch only."""
    if at_once or not isinstance(replica, DistributedDataParallel):
        return nullcontext()
    return replica.no_sync()
