"""What every method is to a run: a module that turns a batch's views into a loss."""

from abc import ABC, abstractmethod

from torch import nn

from accelssl.model.vit import Encoder


class Objective(nn.Module, ABC):
    """`objective(*views)` is the loss of this rank's images: a scalar, float32 at least.

    A step may be captured as a CUDA graph and replayed. So forward waits for nothing, does the same
    whatever the data, and reads no Python number that changes: what changes with progress lies in
    tensors on the device, which `set_progress` fills before the step. They are no part of the
    state, being functions of progress.
    """

    @property
    @abstractmethod
    def evaluated(self) -> Encoder:
        """The encoder whose features are evaluated."""

    @abstractmethod
    def encoders(self) -> tuple[Encoder, ...]:
        """The encoders that a step runs."""

    def set_progress(self, progress: float) -> None:
        """Prepare the next steps, at `progress` (0 to 1) of the budget, on the current stream."""
