"""AdamW, and its learning rate and weight decay as functions of progress."""

import math
from collections.abc import Hashable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from accelssl.switches import uses_kernels
from accelssl.train.optim.bf16_copies import Bf16Copies

if TYPE_CHECKING:
    from accelssl.train.optim.adamw_kernel import Moved

"""Set to 0 to have torch's update, and weights cast before each product."""

_DTYPES = 3  # gradients in bfloat16 or float32 of weights with copies; those of others


def learning_rate(progress: float, peak: float, warmup: float) -> float:
    """Return the learning rate: linear warm-up over the first `warmup`, then peak (1 - t^2).

    `warmup` is a share of the budget. t runs from 0 to 1 over the rest, so the rate stays high for
    long: .9375, .75 and .4375 of the peak at t = .25, .5 and .75 (paper, section 5; the formula,
    not torch's polynomial decay).
    """
    if progress < warmup:
        return peak * progress / warmup
    t = (progress - warmup) / (1 - warmup)
    return peak * (1 - t * t)


def weight_decay_at(progress: float, start: float, end: float) -> float:
    """Return the weight decay: from `start` to `end` along half a cosine, DINO's schedule."""
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


class AdamW(torch.optim.AdamW):
    """torch's AdamW with a scheduled weight decay of `decaying` and clipped gradients.

    The decay goes from decay[0] to decay[1] with progress. `adamw` creates the object and documents
    the options. Numbers that change between steps are tensors on a GPU, because a captured graph of
    the step cannot take another number. On a GPU the update is one launch, or two for weights with
    `copies`. Gradients of those weights are the gradients of their copies. The state is torch's.
    """

    copies: Bf16Copies | None = None

    def __init__(
        self,
        groups: list[dict[str, Any]],
        device: torch.device,
        decaying: Sequence[nn.Parameter] = (),
        decay: tuple[float, float] = (0.0, 0.0),
        clip: float = 0.0,
    ) -> None:
        if device.type == "cuda":
            rate = torch.zeros((), device=device)
            super().__init__(groups, lr=rate, fused=True, capturable=True)
            self.register_load_state_dict_pre_hook(_on_gpu)
            self.register_load_state_dict_post_hook(partial(_share_rate, rate))
        else:
            super().__init__(groups, lr=0.0)
        self._decaying, self._decay, self._clip = tuple(decaying), decay, clip
        self._shrink = torch.ones((), device=device)  # factor of decayed parameters
        self._has_kernel = device.type == "cuda" and _has_kernel(groups)
        self._table: Tensor | None = None
        self._captured: list[Tensor] = []

    @property
    def takes_copies(self) -> bool:
        """Return True if weights may have `copies`. Copies would round clipped gradients twice."""
        return self._has_kernel and not self._clip

    def prepare(self, rate: float, progress: float) -> None:
        """Set learning rate `rate` and the weight decay at `progress` for the next step."""
        set_learning_rate(self, rate)
        if self._decaying:
            self._shrink.fill_(1 - rate * weight_decay_at(progress, *self._decay))
        if self.copies:
            self.copies.refresh()
        if self._has_kernel and self._table is None:  # a step that is replayed takes none
            self._table = self._new_table()  # not while a graph is captured

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients as torch's AdamW does, including gradients of the copies."""
        super().zero_grad(set_to_none)
        for copy in self.copies or ():
            copy.grad = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters as torch's AdamW does.

        A parameter without gradient neither moves nor decays.
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        if self._clip:
            parameters = [p for group in self.param_groups for p in group["params"]]
            clip_each([p.grad for p in parameters if p.grad is not None], self._clip)
        if self._decaying:
            moving: list[Tensor] = [p for p in self._decaying if self._gradient(p) is not None]
            torch._foreach_mul_(moving, self._shrink)
        if self._has_kernel:
            self._update()
        else:
            super().step()
        return loss

    def _copy(self, parameter: Tensor) -> Tensor | None:
        return self.copies.of(parameter) if self.copies else None

    def _gradient(self, parameter: Tensor) -> Tensor | None:
        copy = self._copy(parameter)
        return parameter.grad if copy is None or copy.grad is None else copy.grad

    def _update(self) -> None:
        from accelssl.train.optim.adamw_kernel import update

        # What a launch has in common: numbers, and dtypes.
        launches: dict[tuple[Any, float, Hashable], list[Moved]] = {}
        for group in self.param_groups:
            for moved in self._moved(group):
                dtypes = moved.gradient.dtype, moved.copy is None
                key = tuple(group["betas"]), group["eps"], dtypes
                launches.setdefault(key, []).append(moved)
        if not launches:
            return
        rate = self.param_groups[0]["lr"]
        table = self._new_table() if self._table is None else self._table
        self._table = None
        if torch.cuda.is_current_stream_capturing():
            self._captured.append(table)
        torch._foreach_add_([m.steps for those in launches.values() for m in those], 1)
        for ((betas, eps, _), those), part in zip(launches.items(), table, strict=False):
            update(those, rate, betas, eps, part)

    def _moved(self, group: dict[str, Any]) -> "list[Moved]":
        from accelssl.train.optim.adamw_kernel import Moved

        moved = []
        for parameter in group["params"]:
            gradient = self._gradient(parameter)
            if gradient is None:
                continue
            state = self.state[parameter]
            if not state:  # under the names, and with the values, that torch's own has
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            moments = state["exp_avg"], state["exp_avg_sq"], state["step"]
            its = *moments, group["weight_decay"], self._copy(parameter)
            moved.append(Moved(parameter, gradient.contiguous(), *its))
        return moved

    def _new_table(self) -> Tensor:
        """Return a table for all possible launches.

        The kernel reads the table asynchronously; in a CUDA graph, at each replay.
        """
        from accelssl.train.optim.adamw_kernel import new_table

        count = sum(len(group["params"]) for group in self.param_groups)
        return new_table(_DTYPES * len(self.param_groups), count, pin_memory=True)


def _has_kernel(groups: Sequence[dict[str, Any]]) -> bool:
    """Return True if the kernel is switched on, runs on a GPU and supports all tensors."""
    parameters = [p for group in groups for p in group["params"]]
    fits = all(p.dtype == torch.float32 and p.is_contiguous() for p in parameters)
    return fits and find_spec("triton") is not None and uses_kernels()


def _on_gpu(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return a state, also a state from a CPU, that torch loads onto the parameters' device.

    The step counters move to the device too.
    """
    groups = [group | {"fused": True, "capturable": True} for group in state["param_groups"]]
    return state | {"param_groups": groups}


def _share_rate(rate: Tensor, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_each(gradients: list[Tensor], most: float) -> None:
    """Scale down, in place, each gradient whose own norm is above `most`.

    DINO also clips each gradient alone instead of the norm of all (facebookresearch/dino,
    utils.py). The function does not wait for the device.
    """
    norms = torch.stack(torch._foreach_norm(gradients))
    scales = (most / (norms + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(gradients, list(scales.unbind()))


def adamw(
    module: nn.Module,
    weight_decay: float,
    *,
    decays_vectors: bool = False,
    final_weight_decay: float | None = None,
    clip: float = 0.0,
) -> AdamW:
    """Return AdamW over the trained parameters.

    Biases, norms and other vectors have no weight decay, unless decays_vectors. With
    final_weight_decay, the decay goes from weight_decay to final_weight_decay with progress. clip:
    the largest norm of a parameter's gradient; 0 means no clipping.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    matrices, vectors = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
    device = next(module.parameters()).device
    if final_weight_decay is not None:
        groups = [{"params": params, "weight_decay": 0.0} for params in (matrices, vectors)]
        decaying = trained if decays_vectors else matrices
        return AdamW(groups, device, decaying, (weight_decay, final_weight_decay), clip)
    of_vectors = weight_decay if decays_vectors else 0.0
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": of_vectors},
    ]
    return AdamW(groups, device, clip=clip)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
