"""The gradient of a method's loss on one batch, as one vector, without side effects.

Shapes: D parameters, B rows of a bank, E projected width.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from accelssl.model.ema import MovingAverage
from accelssl.model.objective import Objective
from accelssl.model.tokens import Tokens
from accelssl.train.gradients.replay import Replays

Scope = Literal["all", "backbone"]
SCOPES: tuple[Scope, ...] = get_args(Scope)


class Gradient:
    """A function of views that returns gradient_D, float32, of the objective's loss at `progress`.

    scope: all trained parameters, or "backbone" for the encoder's alone. Batch norms use the
    statistics of the batch, as in training. Nothing else changes: EMA encoder and centre stay
    fixed, stochastic depth is off, and running statistics are restored. The objective belongs to
    this object. On a GPU its gradients are replayed from a CUDA graph.
    """

    def __init__(
        self, objective: Objective, progress: float, precision: str, scope: Scope = "all"
    ) -> None:
        self._objective, self._bf16 = objective, precision == "bf16"
        objective.train()
        objective.set_progress(progress)
        for module in objective.modules():
            if isinstance(module, MovingAverage):
                module.share.zero_()
        for encoder in objective.encoders():
            encoder.leave_out_drop_path()
        source = objective if scope == "all" else objective.encoders()[0]
        self._parameters = [p for p in source.parameters() if p.requires_grad]
        self.size = sum(parameter.numel() for parameter in self._parameters)
        self.device = self._parameters[0].device
        self._buffers = list(objective.buffers())
        self._before = [buffer.clone() for buffer in self._buffers]
        on_gpu = self.device.type == "cuda"
        self._replays = Replays(self._compute, self.size, self.device) if on_gpu else None

    def __call__(self, views: Sequence[Tokens], bank: tuple[Tensor, ...] = ()) -> Tensor:
        """Return the gradient. bank: results of `negatives` for other batches, further negatives
        to every query."""
        return (self._replays or self._compute)(views, bank)

    def _compute(self, views: Sequence[Tokens], bank: tuple[Tensor, ...]) -> Tensor:
        self._objective.zero_grad(set_to_none=True)
        self._objective.bank = bank
        with self._autocast():
            loss: Tensor = self._objective(*views)
        loss.backward()  # type: ignore[no-untyped-call]
        self._objective.bank = ()
        self._objective.after_backward()
        parts = [p.new_zeros(p.numel()) if p.grad is None else p.grad for p in self._parameters]
        gradient_D = torch.cat([part.flatten().float() for part in parts])
        self._objective.zero_grad(set_to_none=True)
        self._put_back()
        return gradient_D

    @torch.no_grad()
    def negatives(self, views: Sequence[Tokens]) -> tuple[Tensor, ...]:
        """Return bank_BE for each term of the loss: these images as negatives to others.

        Empty for a method without negatives.
        """
        with self._autocast():
            found = self._objective.negatives(*views)
        self._put_back()
        return found

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16)

    @torch.no_grad()
    def _put_back(self) -> None:
        torch._foreach_copy_(self._buffers, self._before)
