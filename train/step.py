"""One training step: forward, backward, AdamW. On a GPU compiled, and replayed as a CUDA graph."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from accelssl.model.batch_norm import GlobalBatchNorm1d
from accelssl.model.gather import gather_detached, rank, world_size
from accelssl.model.objective import Objective
from accelssl.pipeline.loader import Batch, Tokens
from accelssl.train.graph_inputs import fill, places_like, shapes
from accelssl.train.optim.adamw import AdamW
from accelssl.train.optim.bf16_copies import Bf16Copies
from accelssl.train.ranks.distributed import EAGER_STEPS
from accelssl.train.ranks.streams import training_stream

# Each stage of a schedule compiles the blocks again, for its own number of tokens. torch's default
# limit is 8 compilations.
_MOST_SHAPES = 64

# Number of steps that the host may launch before the GPU has finished them. More steps would only
# fill the memory with batches.
_MOST_LAUNCHED = 2


@dataclass(frozen=True)
class _Captured:
    """Step captured as a CUDA graph, which reads the buffers `views` and writes `losses_R`."""

    course: Hashable
    graph: torch.cuda.CUDAGraph
    views: tuple[Tokens, ...]
    losses_R: Tensor


class Step:
    """Training step: `step(batch, rate, progress)` trains on one batch and returns the mean loss.

    rate is the learning rate. progress (0 to 1) drives the schedules of the objective. The mean is
    over all R ranks; `losses_R` holds the loss of each rank. `noted` holds the scalars that the
    objective noted for the last batch on this rank. All of these values stay on the device.

    Random draws (stochastic depth) come from torch's global generator. Each step seeds the
    generator from `seed`, the number of the step (`steps` counts the steps before the first) and
    the rank. A resumed run therefore draws the same numbers as an uninterrupted run.

    With is_compiled (default on a GPU) the blocks of the encoders are compiled, which fuses the
    operations between the matrix products. The first batch of each shape runs without a CUDA graph,
    to finish the initialisation that a capture does not allow. On several ranks, the first
    EAGER_STEPS steps run without a graph too. Later batches run as one CUDA graph, which launches
    about a thousand kernels at once, without gaps. Compilation does not change the parameters, and
    hence not the checkpoints.

    replica: the module that runs in place of the objective on several ranks.

    On one rank in bf16, linear layers use bf16 copies of their weights (bf16_copies.py), if the
    objective `is_one_pass` and the optimiser `takes_copies`. A graph runs on a separate stream with
    a higher priority than other streams, such as the loader's. A graph keeps the memory of a whole
    step, so only one graph exists: for the last shape and the last phase of the objective.
    """

    def __init__(
        self,
        objective: Objective,
        optimizer: AdamW,
        precision: str,
        *,
        replica: nn.Module | None = None,
        is_compiled: bool | None = None,
        seed: int = 0,
        steps: int = 0,
    ) -> None:
        self._module: Callable[..., Tensor] = replica or objective
        self._objective, self._optimizer = objective, optimizer
        self._seed, self._steps = seed, steps
        self.noted = _cloned(objective.noted)
        self._bf16 = precision == "bf16"
        is_alone = replica is None or replica is objective
        if self._bf16 and is_alone and objective.is_one_pass and optimizer.takes_copies:
            self._module = optimizer.copies = optimizer.copies or Bf16Copies(objective)
        self._device = next(objective.parameters()).device
        on_gpu = self._device.type == "cuda"
        self._captured: _Captured | None = None
        self._warm: set[Hashable] = set()
        self._plain_steps = EAGER_STEPS if world_size() > 1 else 0
        self._stream: torch.cuda.Stream | None = None
        self._launched: deque[torch.cuda.Event] = deque()
        if on_gpu and is_compiled is not False:
            torch._dynamo.config.recompile_limit = _MOST_SHAPES
            for encoder in objective.encoders():
                encoder.compile_blocks()
            if world_size() == 1:
                objective.compile_head()
            else:
                for module in objective.modules():
                    if isinstance(module, GlobalBatchNorm1d):
                        module.compile_parts()
            self._stream = training_stream(self._device)

    @property
    def spread(self) -> Tensor:
        """Return the spread of the last batch's features on this rank."""
        return self.noted["spread"]

    @property
    def is_idle(self) -> bool:
        """Return True if the GPU has finished all launched steps. Always False on a CPU."""
        if not self._launched:
            return False
        is_done: bool = self._launched[-1].query()  # type: ignore[no-untyped-call]
        return is_done

    def __call__(self, batch: Batch, rate: float, progress: float = 0.0) -> Tensor:
        if self._stream is None:
            self._prepare(rate, progress)
            self.losses_R = self._run(batch.views)
            self.noted = _cloned(self._objective.noted)
            return self.losses_R.mean()
        if len(self._launched) == _MOST_LAUNCHED:
            self._launched.popleft().synchronize()
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._prepare(rate, progress)
            self.losses_R = self._replay(batch.views)
            loss = self.losses_R.mean()
            self.noted = _cloned(self._objective.noted)
            self._launched.append(self._stream.record_event())
        for view in batch.views:
            view.values_NLV.record_stream(self._stream)
            view.keep_idx_NL.record_stream(self._stream)
        for scalar in (loss, self.losses_R, *self.noted.values()):
            scalar.record_stream(current)
        current.wait_stream(self._stream)
        return loss

    def _prepare(self, rate: float, progress: float) -> None:
        """Update the values that a step or its graph reads. Call on the stream of the step."""
        self._optimizer.prepare(rate, progress)
        self._objective.set_progress(progress)
        self._seed_generator()
        self._steps += 1

    def _seed_generator(self) -> None:
        """Seed the generator for this step. A graph reads the seed at each replay."""
        words = np.random.SeedSequence((self._seed, self._steps, rank())).generate_state(1)
        generator = torch.default_generator
        if self._device.type == "cuda":
            generator = torch.cuda.default_generators[self._device.index or 0]
        generator.manual_seed(int(words[0]))

    def _replay(self, views: Sequence[Tokens]) -> Tensor:
        course = self._objective.phase, shapes(views)
        if self._captured and self._captured.course != course:
            self._release(self._captured)
        if course not in self._warm or self._plain_steps > 0:
            self._warm.add(course)
            self._plain_steps -= 1
            return self._run(views)
        captured = self._captured = self._captured or self._capture(course, views)
        fill(captured.views, views)
        captured.graph.replay()
        return captured.losses_R.clone()

    def _release(self, captured: _Captured) -> None:
        self._optimizer.zero_grad(set_to_none=True)  # the graph's memory holds the gradients
        torch.cuda.current_stream(self._device).synchronize()
        captured.graph.reset()
        self._captured = None

    def _capture(self, course: Hashable, views: Sequence[Tokens]) -> _Captured:
        static = places_like(views)
        self._optimizer.zero_grad(set_to_none=True)  # the graph then allocates the gradients
        graph = torch.cuda.CUDAGraph()
        # During the capture, other threads decode and prepare batches on this device.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            losses_R = self._run(static)
        return _Captured(course, graph, static, losses_R)

    def _run(self, views: Sequence[Tokens]) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._bf16):
            loss: Tensor = self._module(*views)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self._objective.after_backward()
        self._optimizer.step()
        self._objective.after_step()
        return gather_detached(loss.detach().view(1))


def _cloned(noted: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: scalar.clone() for name, scalar in noted.items()}
