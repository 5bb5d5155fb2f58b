"""The interface of every method: a module that turns a batch's views into a loss."""

from abc import ABC, abstractmethod
from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accelssl.model.tokens import Tokens
from accelssl.model.vit import Encoder


class Objective(nn.Module, ABC):
    """A method's loss: `objective(*views)` is a scalar over this rank's images, float32 at least.

    A step may be captured as a CUDA graph and replayed. So forward waits for nothing, does the same
    for any data, and reads no changing Python number except `phase`. Values that change with
    progress are tensors on the device; `set_progress` fills them before the step. The state leaves
    them out, because they are functions of progress.

    A step is: set_progress, forward, backward, `after_backward`, the optimiser, `after_step`.

    bank: further negatives for each term of the loss, beside the batch's own, as `negatives`
    returned them for other images. None in training.
    """

    spread: Tensor
    bank: tuple[Tensor, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._noted_names: list[str] = []
        self._spread_of = spread_of
        self._notes("spread", 1.0)

    @property
    @abstractmethod
    def evaluated(self) -> Encoder:
        """Return the encoder whose features are evaluated."""

    @abstractmethod
    def encoders(self) -> tuple[Encoder, ...]:
        """Return the encoders that a step runs."""

    @abstractmethod
    def heads(self) -> tuple[nn.Module, ...]:
        """Return the trained modules after the encoder: the head, then a predictor if any."""

    @property
    def phase(self) -> Hashable:
        """Return the phase of the training step. A CUDA graph of a step is valid for one phase."""
        return None

    @property
    def is_one_pass(self) -> bool:
        """Return True if forward uses each trained linear layer's weight in exactly one product.

        The weights can then be rounded before forward without a change of the result.
        """
        return False

    def compile_head(self) -> None:
        """Compile the modules after the encoders: many small kernels otherwise. One rank only."""
        self._spread_of = torch.compile(spread_of, dynamic=False)

    def set_progress(self, progress: float) -> None:
        """Prepare the next steps, at `progress` (0 to 1) of the budget, on the current stream."""

    def negatives(self, *views: Tokens) -> tuple[Tensor, ...]:
        """Return bank_BE for each term of the loss: these views as negatives of other images.

        A method without negatives returns nothing.
        """
        return ()

    def after_backward(self) -> None:
        """Run after backward: gradients are averaged over ranks and not used yet."""

    def after_step(self) -> None:
        """Run after the optimiser has updated the parameters."""

    @property
    def noted(self) -> dict[str, Tensor]:
        """Return further scalars of the last forward pass on this rank's images, on the device.

        The names are always the same. "spread" is the spread of the features: see `spread_of`.
        """
        return {name: self.get_buffer(name) for name in self._noted_names}

    def _notes(self, name: str, at_first: float) -> None:
        """Register a scalar `name` in `noted`."""
        self.register_buffer(name, torch.tensor(at_first), persistent=False)
        self._noted_names.append(name)

    @torch.no_grad()
    def _note(self, name: str, scalar: Tensor) -> None:
        self.get_buffer(name).copy_(scalar)

    def _note_spread(self, features_ND: Tensor) -> None:
        self._note("spread", self._spread_of(features_ND.detach()))


def spread_of(features_ND: Tensor) -> Tensor:
    """Return the standard deviation of the normalised features over a batch, on their device.

    The value is the root of the variances' sum over D: 1 for features in random directions, 0 for
    equal features, the failure of self-supervision named collapse. Two images have a cosine of
    1 - spread^2 on average. The scalar is in float32 at least.
    """
    with torch.autocast(features_ND.device.type, enabled=False):
        dtype = torch.promote_types(features_ND.dtype, torch.float32)
        unit_ND = F.normalize(features_ND.to(dtype), dim=1)
        return (unit_ND - unit_ND.mean(0)).square().sum(1).mean().sqrt()
