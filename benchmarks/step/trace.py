"""Record the kernels of training steps: those of a GPU, or torch's operators on a CPU."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from accelssl.benchmarks.step.kernels import MARK, Kernel, TracedStep, traced_steps
from accelssl.benchmarks.throughput.step_windows import wait_for


class Marks:
    """Marks in the trace about what is not told by the names of kernels: heads and loss.

    `encoder` is the only one of its objective, called once a step. From now on a mark follows its
    forward pass and another precedes its backward pass, two tiny kernels also in a captured step.
    """

    def __init__(self, encoder: nn.Module, device: torch.device) -> None:
        self._place = torch.zeros(1, dtype=torch.int32, device=device)
        encoder.register_forward_hook(self._around)

    def mark(self) -> None:
        if self._place.is_cuda:
            from accelssl.benchmarks.step.mark import launch_mark

            launch_mark(self._place)
        else:
            with record_function(MARK):
                pass

    def _around(self, encoder: nn.Module, inputs: Any, features_ND: Tensor) -> Tensor:
        marked_ND: Tensor = _Marked.apply(features_ND, self.mark)
        return marked_ND


class _Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features_ND: Tensor, mark: Callable[[], None]) -> Tensor:
        ctx.mark = mark
        mark()
        return features_ND.view_as(features_ND)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.mark()
        (gradient_ND,) = gradients
        return gradient_ND, None


def trace(
    step: Callable[[], object], mark: Callable[[], None], device: torch.device, steps: int
) -> list[TracedStep]:
    """`steps` steps, one after another without a wait, of a warm `step` whose encoder has Marks.

    Raises RuntimeError if the profiler lost some of the marks.
    """
    on_gpu = device.type == "cuda"
    if not on_gpu:  # whose absence the profiler would print as an error
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    wait_for(device)
    with profile(activities=[activity]) as recorded:
        for _ in range(steps + 1):  # the first one is not counted
            mark()
            step()
        mark()
        if on_gpu:
            torch.cuda.synchronize(device)
    events = recorded.events() or ()
    return traced_steps(_of_gpu(events) if on_gpu else _of_cpu(events))


def _of_gpu(events: Iterable[FunctionEvent]) -> Iterator[Kernel]:
    for event in events:
        if event.device_type.name == "CUDA" and not event.is_user_annotation:
            yield _kernel(event, event.name)


def _of_cpu(events: Iterable[FunctionEvent]) -> Iterator[Kernel]:
    """Marks, and operators that no other operator calls; an optimiser's after its name."""
    for event in events:
        if event.name == MARK:
            yield _kernel(event, MARK)
        elif event.name.startswith("aten::"):
            callers = [caller.name for caller in _callers(event)]
            if not any(caller.startswith("aten::") for caller in callers):
                optimizer = [c for c in callers if c.startswith("Optimizer.step")]
                yield _kernel(event, " ".join([*optimizer, event.name]))


def _callers(event: FunctionEvent) -> Iterator[FunctionEvent]:
    caller = event.cpu_parent
    while caller is not None:
        yield caller
        caller = caller.cpu_parent


def _kernel(event: FunctionEvent, name: str) -> Kernel:
    return Kernel(name, event.time_range.start / 1e6, event.time_range.end / 1e6)
