"""The fused op's implementations that run here, against its definition in float64.

The bounds are those of the project's own tests: the largest and the mean error are at most twice
the definition's own in the same precision, but where the solarization's threshold or the change of
the largest colour is so near that rounding decides.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from accelssl.benchmarks.doctor.finding import Context, Finding
from accelssl.pipeline import views
from accelssl.pipeline.compress import op, reference
from accelssl.pipeline.compress.op import Implementation
from accelssl.pipeline.draws.augmentation import Column, augmentation

SIZE, CROPS = 240, 8
_SIDES_P = (30, 16, 48)
_ALL: tuple[Implementation, ...] = ("cuda", "triton", "torch")


def check_op(context: Context) -> Finding:
    """Check every implementation that runs here, "auto" first, against the definition."""
    known = context.implementation
    chosen = op.runs_on(context.device).partition(",")[0] if known == "auto" else known
    names: tuple[Implementation, ...] = (known,) if known != "auto" else _ALL
    if not context.on_gpu:
        names = ("torch",)
    errors: list[str] = []
    failures: list[str] = []
    missing: list[str] = []
    for name in names:
        try:
            # Triton takes seconds to compile for each p.
            sides_p = _SIDES_P if name == chosen else _SIDES_P[:1]
            error = _largest_error(name, context.device, sides_p)
        except Exception as reason:  # of compilers and drivers; the other implementations count
            if name == chosen:
                raise
            missing.append(f"{name} does not run ({_first_line(reason)})")
            continue
        (errors if error <= 1 else failures).append(f"{name} {error:.2g}")
    found = f"{chosen} is used; largest error by its limit: {', '.join([*errors, *failures])}"
    if missing:
        found += f"; {'; '.join(missing)}"
    if failures:
        remedy = "Do not train here: tokens are wrong. Report it with this table."
        return Finding("fused op", "broken", found, remedy)
    if context.on_gpu and known == "auto" and chosen != "cuda":
        remedy = "The NVRTC line says why the CUDA kernel, the fastest, is not used."
        return Finding("fused op", "slow", found, remedy)
    return Finding("fused op", "ok", found)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _largest_error(
    implementation: Implementation, device: torch.device, sides_p: Sequence[int]
) -> float:
    """Return the worst error of all cases, as a fraction of its limit."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    fractions = []
    for p in sides_p:
        crops, params, keep = (x.to(device) for x in _inputs(p))
        tokens = op.augment_patchify(crops, params, keep, p, dtype, implementation)
        fractions.append(error_by_limit(tokens, *_expected(p)))
    return max(fractions)


def error_by_limit(tokens: Tensor, exact: Tensor, plain: Tensor) -> float:
    """Return the tokens' error as a fraction of the allowed error; at most 1 is correct.

    `exact` is the definition in float64, `plain` in float32. Not finite: infinitely wrong.
    """
    if not bool(tokens.isfinite().all()):
        return float("inf")
    rounded = plain.to(tokens.dtype)
    ours, theirs = (t.double().sub(exact).abs().flatten() for t in (tokens.cpu(), rounded))
    # One value in ten thousand may fall on the other side of a threshold, in either of the two.
    worst = max(1, ours.numel() // 10_000)
    largest, allowed = (float(x.topk(worst).values[-1]) for x in (ours, theirs))
    mean, allowed_mean = float(ours.mean()), float(theirs.mean())
    return max(largest / (2 * allowed + 1e-6), mean / (2 * allowed_mean + 1e-7))


@cache
def _expected(p: int) -> tuple[Tensor, Tensor]:
    """Return the definition's tokens in float64 and in float32."""
    inputs = _inputs(p)
    exact = reference.augment_patchify(*inputs, p, torch.float64)
    return exact, reference.augment_patchify(*inputs, p)


@cache
def _inputs(p: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return noise, smooth colours and grays with SimCLR's augmentation, half of them solarized."""
    rng = np.random.default_rng(p)
    crops = rng.integers(0, 256, (CROPS, SIZE, SIZE, 3), dtype=np.uint8)
    ramp = np.linspace(0, 255, SIZE).astype(np.uint8)
    crops[0::4] = np.stack(np.broadcast_arrays(ramp, ramp[:, None], ramp[::-1]), axis=-1)
    crops[1::4] = crops[1::4, :, :, :1]
    params = augmentation(views.simclr(SIZE)[0], 0, p, 0, np.arange(CROPS))
    params[:, Column.SOLARIZE] = rng.integers(0, 2, CROPS)
    patches = (SIZE // p) ** 2
    keep = np.stack([rng.permutation(patches)[: patches // 2] for _ in range(CROPS)])
    return torch.from_numpy(crops), torch.from_numpy(params), torch.from_numpy(keep)
