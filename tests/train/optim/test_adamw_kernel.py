"""AdamW in one launch against torch's own; without a GPU the kernel in Triton's interpreter."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
import triton.language as tl

from accelssl.train.optim import adamw_kernel
from accelssl.train.optim.adamw_kernel import BLOCK, Moved, new_table, update
from tests.machine_code import compiled, refuse_spills
from tests.model.interpreter import interpreting

RATE, BETAS, EPS = 0.01, (0.9, 0.999), 1e-8
Run = Callable[[Sequence[Moved]], list[Moved]]

WHOLE = ((64, 48), (BLOCK,), (3, BLOCK // 2 + 4), (4,))
RAGGED = ((5, 7), (BLOCK + 1,), (64, 48), (1,))


@pytest.fixture(scope="module", params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def updated(request: pytest.FixtureRequest) -> Iterator[Run]:
    """The tensors as the kernel leaves them, on the CPU."""
    if request.param == "gpu":

        def on_gpu(moved: Sequence[Moved]) -> list[Moved]:
            those = [Moved._make(map(partial(_to, "cuda"), each)) for each in moved]
            table = new_table(1, len(those), pin_memory=True)[0]
            update(those, torch.tensor(RATE, device="cuda"), BETAS, EPS, table)
            return [Moved._make(map(partial(_to, "cpu"), each)) for each in those]

        yield on_gpu
        return

    def interpreted(moved: Sequence[Moved]) -> list[Moved]:
        # Tensors are sent in memory that both processes have.
        told = torch.tensor(RATE), BETAS, EPS, new_table(1, len(moved))[0]
        pool.submit(update, moved, *told).result()
        return list(moved)

    with interpreting() as pool:
        yield interpreted


def _to(device: str, x: object) -> object:
    """What it is a part of goes with it, and so does where it begins."""
    if not isinstance(x, Tensor):
        return x
    whole = x if x._base is None else x._base
    return whole.to(device).as_strided(x.shape, x.stride(), x.storage_offset())


def drawn(shape: Sequence[int], seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def torchs(weights: Sequence[Tensor], decays: Sequence[float]) -> torch.optim.AdamW:
    groups = [
        {"params": [torch.nn.Parameter(weight.double())], "weight_decay": decay}
        for weight, decay in zip(weights, decays, strict=True)
    ]
    return torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS)


@pytest.mark.parametrize("shapes", [WHOLE, RAGGED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_torchs_adamw_in_float64(
    updated: Run, shapes: Sequence[Sequence[int]], dtype: torch.dtype
) -> None:
    decays = [0.1, 0.0, 0.3, 0.1]
    weights = [drawn(shape, i) for i, shape in enumerate(shapes)]
    moved = [
        Moved(w.clone(), w, torch.zeros_like(w), torch.zeros_like(w), torch.zeros(()), decay)
        for w, decay in zip(weights, decays, strict=True)
    ]
    reference = torchs(weights, decays)
    for step in range(4):
        gradients = [
            drawn(shape, 10 * step + i, 10.0**-i).to(dtype) for i, shape in enumerate(shapes)
        ]
        for each in moved:
            each.steps.add_(1)
        pairs = zip(moved, gradients, strict=True)
        moved = updated([each._replace(gradient=gradient) for each, gradient in pairs])
        for group, gradient in zip(reference.param_groups, gradients, strict=True):
            group["params"][0].grad = gradient.double()
        reference.step()
        for i, (each, group) in enumerate(zip(moved, reference.param_groups, strict=True)):
            (theirs,) = group["params"]
            mean, square = (reference.state[theirs][name] for name in ("exp_avg", "exp_avg_sq"))
            torch.testing.assert_close(each.weight.double(), theirs, rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(each.mean.double(), mean, rtol=1e-6, atol=1e-6 * 10.0**-i)
            torch.testing.assert_close(each.square.double(), square, rtol=1e-6, atol=0)


@pytest.mark.parametrize("steps", [1.0, 2.0, 7e2, 3e5])
def test_the_moments_are_corrected_at_each_tensors_own_step(updated: Run, steps: float) -> None:
    """Moments that are what they would be after so many equal gradients give a step of the rate."""
    gradient = drawn((40,), 1)
    moments = gradient * (1 - 0.9 ** (steps - 1)), gradient**2 * (1 - 0.999 ** (steps - 1))
    other = drawn((40,), 2)
    first = Moved(other.clone(), gradient, *moments, torch.tensor(steps), 0.0)
    none = torch.zeros(2, 40)
    second = Moved(other.clone(), gradient, none[0], none[1], torch.tensor(1.0), 0.0)
    for each in updated([first, second]):
        torch.testing.assert_close(
            each.weight, other - RATE * gradient.sign(), rtol=1e-6, atol=2e-7
        )


def test_a_copy_is_the_new_weight(updated: Run, request: pytest.FixtureRequest) -> None:
    """Rounded to nearest on a GPU; the interpreter cuts bfloat16 off, so there it is float32."""
    on_gpu = "gpu" in request.node.callspec.id
    dtype = torch.bfloat16 if on_gpu else torch.float32
    mean, square = torch.zeros(2, 9, 50)
    copies = torch.full((9, 50), torch.nan, dtype=dtype)
    weight = drawn((9, 50), 1)
    gradient = drawn((9, 50), 2).bfloat16()
    moved = Moved(weight.clone(), gradient, mean, square, torch.ones(()), 0.1, copies)
    (found,) = updated([moved])
    assert found.copy is not None and not torch.equal(found.weight, weight)
    assert torch.equal(found.copy, found.weight.to(dtype))


def test_what_lies_around_a_tensor_stays(updated: Run) -> None:
    """Parts of a larger one, that begin where no vector does."""
    for begin, size in ((1, 6), (3, BLOCK + 5), (4, 8)):
        parts = [drawn((BLOCK + 20,), i).abs()[begin : begin + size] for i in range(4)]
        before = [part.clone() for part in parts]
        wholes = [whole(part).clone() for part in parts]
        weight, gradient, mean, square = parts
        (found,) = updated([Moved(weight, gradient, mean, square, torch.ones(()), 0.1)])
        for was, whole_was, part in zip(before, wholes, found[:4], strict=True):
            assert torch.equal(was, part) is (part is found.gradient)
            now = whole(part)
            assert torch.equal(now[:begin], whole_was[:begin])
            assert torch.equal(now[begin + size :], whole_was[begin + size :])


def whole(part: Tensor) -> Tensor:
    """What it is a part of."""
    assert part._base is not None
    return part._base


def test_a_tensor_that_does_not_fit_is_refused() -> None:
    w, steps, table = torch.ones(4), torch.ones(()), new_table(1, 1)[0]
    for wrong, said in (
        (Moved(w, torch.ones(5), w, w, steps, 0.0), r"torch.float32 \(5,\)"),
        (Moved(w, w, w.double(), w, steps, 0.0), "torch.float64"),
        (Moved(w, w, w, w, steps, 0.0, torch.ones(3)), r"\(3,\)"),
        (Moved(w, w, w, w, torch.ones((), device="meta"), 0.0), "on meta"),
    ):
        with pytest.raises(ValueError, match=said):
            update([wrong], torch.ones(()), BETAS, EPS, table)
    square = torch.ones(4, 4)
    turned = Moved(square, torch.ones(4, 4).T, square, square, steps, 0.0)
    turned = turned._replace(gradient=torch.ones(4, 8)[:, ::2])
    with pytest.raises(ValueError, match="contiguous"):
        update([turned], torch.ones(()), BETAS, EPS, table)
    halves = [Moved(w, g, w, w, steps, 0.0) for g in (w, w.bfloat16())]
    with pytest.raises(ValueError, match="bfloat16"):
        update(halves, torch.ones(()), BETAS, EPS, new_table(1, 2)[0])


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("has_copy", [False, True])
def test_it_moves_whole_vectors_and_no_value_through_shared_memory(
    capability: int, has_copy: bool, tmp_path: Path
) -> None:
    told = {
        "COLUMNS": 256,
        "GRADIENTS": tl.bfloat16 if has_copy else tl.float32,
        "COPIES": tl.bfloat16 if has_copy else None,
        "VECTOR": 4,
        "BLOCK": BLOCK,
        "num_warps": adamw_kernel.WARPS,
    }
    function = adamw_kernel.adamw_update
    types = dict.fromkeys(function.arg_names, "fp32") | {"table_ptr": "*i64", "rate_ptr": "*fp32"}
    code = compiled(function, told, capability, types)
    lines = code.asm["ptx"].splitlines()
    a_thread = BLOCK // (32 * adamw_kernel.WARPS)
    wide = [line for line in lines if "global.v4.b32" in line]
    halves = [line for line in lines if "global.v2.b32" in line]
    vectors = a_thread // 4
    assert len(wide) == (6 if has_copy else 7) * vectors
    assert len(halves) == 2 * vectors * has_copy
    assert sum("shared" in line and ".b32" in line for line in lines) <= 2  # the sum of a warp's
    refuse_spills(code.asm["cubin"], tmp_path)
