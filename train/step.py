"""One training step: forward, backward, AdamW. On a GPU compiled, and replayed as a CUDA graph."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from accelssl.model.gather import world_size
from accelssl.model.heads import GlobalBatchNorm1d
from accelssl.model.objective import Objective
from accelssl.pipeline.loader import Batch, Tokens
from accelssl.train.distributed import EAGER_STEPS, mean_over_ranks
from accelssl.train.optim import set_learning_rate
from accelssl.train.streams import training_stream

# Every stage of a schedule compiles the blocks anew, for its own number of tokens; torch gives up
# after 8 by itself.
_MOST_SHAPES = 64

# The host launches a step long before the GPU comes to it. Further ahead than this it would only
# fill memory with batches.
_MOST_LAUNCHED = 2

Shape = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Captured:
    """A step as a graph: it reads `views` and writes `loss`, always in the same places."""

    graph: torch.cuda.CUDAGraph
    views: tuple[Tokens, ...]
    loss: Tensor


class Step:
    """`step(batch, rate, progress)` trains on one batch; the loss stays on the device.

    rate is the learning rate; progress (0 to 1) what the objective's own schedules follow. `spread`
    is that of the last batch's features on this rank (see Objective), on the device too.

    With is_compiled (default: on a GPU) the encoders' blocks are compiled, which fuses what stands
    between the matrix products, and from the second batch of each shape on the whole step is one
    CUDA graph: some thousand kernels without gaps between them, launched at once. The first batch
    of a shape runs as it is, and warms up what must not happen while a graph is captured. The
    parameters, and hence checkpoints, are the same either way.

    `replica` is what runs in the objective's place on several ranks. A graph runs on a stream of
    its own before any of lower priority, such as the loader's. It keeps the memory of a whole step,
    so there is only one: of the shape that came last.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        precision: str,
        *,
        replica: nn.Module | None = None,
        is_compiled: bool | None = None,
    ) -> None:
        self._module, self._optimizer = replica or objective, optimizer
        self._objective = objective
        self.spread = objective.spread.clone()
        self._bf16 = precision == "bf16"
        self._device = next(objective.parameters()).device
        on_gpu = self._device.type == "cuda"
        self._captured: _Captured | None = None
        self._warm: set[Shape] = set()
        self._plain_steps = EAGER_STEPS if world_size() > 1 else 0
        self._stream: torch.cuda.Stream | None = None
        self._launched: deque[torch.cuda.Event] = deque()
        if on_gpu and is_compiled is not False:
            torch._dynamo.config.recompile_limit = _MOST_SHAPES
            for encoder in objective.encoders():
                encoder.compile_blocks()
            for module in objective.modules():
                if isinstance(module, GlobalBatchNorm1d) and world_size() > 1:
                    module.compile_parts()
            self._stream = training_stream(self._device)

    @property
    def is_idle(self) -> bool:
        """Whether the GPU has done all that was launched. Never on a CPU, which waits for it."""
        if not self._launched:
            return False
        is_done: bool = self._launched[-1].query()  # type: ignore[no-untyped-call]
        return is_done

    def __call__(self, batch: Batch, rate: float, progress: float = 0.0) -> Tensor:
        if self._stream is None:
            self._prepare(rate, progress)
            loss = self._run(batch.views)
            self.spread = self._objective.spread.clone()
            return loss
        if len(self._launched) == _MOST_LAUNCHED:
            self._launched.popleft().synchronize()
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._prepare(rate, progress)
            loss = self._replay(batch.views)
            self.spread = self._objective.spread.clone()
            self._launched.append(self._stream.record_event())
        for view in batch.views:
            view.values_NLV.record_stream(self._stream)
            view.keep_idx_NL.record_stream(self._stream)
        for scalar in (loss, self.spread):
            scalar.record_stream(current)
        current.wait_stream(self._stream)
        return loss

    def _prepare(self, rate: float, progress: float) -> None:
        """Fill what the step reads, also when it is a graph: on the stream that it runs on."""
        set_learning_rate(self._optimizer, rate)
        self._objective.set_progress(progress)

    def _replay(self, views: Sequence[Tokens]) -> Tensor:
        shape = _shape(views)
        if self._captured and _shape(self._captured.views) != shape:
            self._release(self._captured)
        if shape not in self._warm or self._plain_steps > 0:
            self._warm.add(shape)
            self._plain_steps -= 1
            return self._run(views)
        captured = self._captured = self._captured or self._capture(views)
        for static, view in zip(captured.views, views, strict=True):
            static.values_NLV.copy_(view.values_NLV)
            static.keep_idx_NL.copy_(view.keep_idx_NL)
        captured.graph.replay()
        return captured.loss.clone()

    def _release(self, captured: _Captured) -> None:
        self._optimizer.zero_grad(set_to_none=True)  # they lie in the graph's memory
        torch.cuda.current_stream(self._device).synchronize()
        captured.graph.reset()
        self._captured = None

    def _capture(self, views: Sequence[Tokens]) -> _Captured:
        static = tuple(
            replace(
                view,
                values_NLV=torch.empty_like(view.values_NLV),
                keep_idx_NL=torch.empty_like(view.keep_idx_NL),
            )
            for view in views
        )
        self._optimizer.zero_grad(set_to_none=True)  # so that gradients are the graph's own
        graph = torch.cuda.CUDAGraph()
        # Other threads decode and prepare batches on this device meanwhile.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            loss = self._run(static)
        return _Captured(graph, static, loss)

    def _run(self, views: Sequence[Tokens]) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            loss: Tensor = self._module(*views)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return mean_over_ranks(loss.detach())


def _shape(views: Sequence[Tokens]) -> Shape:
    return tuple((*view.values_NLV.shape, view.p, view.grid) for view in views)
