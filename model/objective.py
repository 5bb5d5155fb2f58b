"""What every method is to a run: a module that turns a batch's views into a loss."""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accelssl.model.vit import Encoder


class Objective(nn.Module, ABC):
    """`objective(*views)` is the loss of this rank's images: a scalar, float32 at least.

    A step may be captured as a CUDA graph and replayed. So forward waits for nothing, does the same
    whatever the data, and reads no Python number that changes: what changes with progress lies in
    tensors on the device, which `set_progress` fills before the step. They are no part of the
    state, being functions of progress.

    `spread` is that of the features of the last forward pass: see `spread_of`.
    """

    spread: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("spread", torch.ones(()), persistent=False)

    @property
    @abstractmethod
    def evaluated(self) -> Encoder:
        """The encoder whose features are evaluated."""

    @abstractmethod
    def encoders(self) -> tuple[Encoder, ...]:
        """The encoders that a step runs."""

    def set_progress(self, progress: float) -> None:
        """Prepare the next steps, at `progress` (0 to 1) of the budget, on the current stream."""

    def _note_spread(self, features_ND: Tensor) -> None:
        with torch.no_grad():
            self.spread.copy_(spread_of(features_ND))


def spread_of(features_ND: Tensor) -> Tensor:
    """Standard deviation of the normalised features over a batch, a scalar on their device.

    The root of the variances' sum over D: 1 where the features of images point anywhere, 0 where
    they are all the same, which is how self-supervision fails (collapse). Two images have a cosine
    of 1 - spread^2 on average. Float32 at least.
    """
    with torch.autocast(features_ND.device.type, enabled=False):
        dtype = torch.promote_types(features_ND.dtype, torch.float32)
        unit_ND = F.normalize(features_ND.to(dtype), dim=1)
        return (unit_ND - unit_ND.mean(0)).square().sum(1).mean().sqrt()
