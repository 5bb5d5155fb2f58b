"""Triton kernels against the same augmentation in float64 by torchvision and Matplotlib.

Without a GPU Triton's interpreter runs the kernels in a separate process, because Triton reads the
choice when it is imported. Uninitialised memory is NaN there, so an unwritten element is found.
A kernel's error is at most twice the float32 definition's plus FLOOR, and at most CAP.
"""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from matplotlib.colors import hsv_to_rgb, rgb_to_hsv
from torch import Tensor

from accelssl.pipeline.compress import reference
from accelssl.pipeline.compress.reference import BLUR_RADIUS, IMAGENET_MEAN, IMAGENET_STD
from accelssl.pipeline.compress.shrink import shrink_matrix
from accelssl.pipeline.compression import PATCH_SIDES
from accelssl.pipeline.draws.augmentation import JITTER_ORDERS, Column, identity

triton = pytest.importorskip("triton")
from accelssl.pipeline.compress import triton_kernel  # noqa: E402
from tests.machine_code import compiled, stack_bytes  # noqa: E402

Op = Callable[[Tensor, Tensor, Tensor, int, torch.dtype], Tensor]
FLOOR = 2**-21  # two units in the last place of the largest values, which lie in [2, 4)
# Of kernel and definition: three times the definition's largest error at usual strengths (5.3e-6),
# and a thousandth of an 8-bit level, which is 1 / 255 / 0.225 of a normalised value.
CAP = 2**-16
EXTREME_CAP = 4 * CAP  # factors of up to 9, and chains of 3 x 3 x 3, enlarge roundings (to 1.7e-5)
STRENGTHS = {"brightness": 1.37, "contrast": 0.63, "saturation": 1.31, "hue": -0.08}


@pytest.fixture(scope="module", params=["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)])
def op(request: pytest.FixtureRequest) -> Iterator[Op]:
    if request.param == "gpu":
        torch.use_deterministic_algorithms(True)
        yield on_gpu
        torch.use_deterministic_algorithms(False)
        return
    pool = ProcessPoolExecutor(
        1, get_context("spawn"), torch.use_deterministic_algorithms, initargs=(True,)
    )
    with pool, pytest.MonkeyPatch.context() as environment:
        environment.setenv("TRITON_INTERPRET", "1")
        unwritten = pool.submit(torch.Tensor.new_empty, torch.zeros(1), (9,)).result()
        assert unwritten.isnan().all()
        environment.undo()
        yield lambda *inputs: pool.submit(triton_kernel.augment_patchify, *inputs).result()


def on_gpu(crops: Tensor, params: Tensor, keep_idx: Tensor, p: int, dtype: torch.dtype) -> Tensor:
    inputs = crops.cuda(), params.cuda(), keep_idx.cuda()
    return triton_kernel.augment_patchify(*inputs, p, dtype).cpu()


def noise(n: int, size: int, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (n, size, size, 3)).astype(np.uint8))


def row(**values: float) -> Tensor:
    """Return the parameters of one crop, (1, P); jitter that is not named does nothing."""
    params = torch.from_numpy(identity(1))
    params[:, Column.BRIGHTNESS : Column.HUE] = 1
    for name, value in values.items():
        params[0, Column[name.upper()]] = value
    return params


def turned(image_CHW: Tensor, turn: float) -> Tensor:
    hsv = rgb_to_hsv(image_CHW.permute(1, 2, 0).numpy())
    hsv[..., 0] = (hsv[..., 0] + turn) % 1
    return torch.from_numpy(hsv_to_rgb(hsv)).permute(2, 0, 1)


STEPS: dict[Column, Callable[[Tensor, float], Tensor]] = {
    Column.BRIGHTNESS: tv.adjust_brightness,
    Column.CONTRAST: tv.adjust_contrast,
    Column.SATURATION: tv.adjust_saturation,
    Column.HUE: turned,
}


def exact_image(crop_HWC: Tensor, values: list[float]) -> tuple[Tensor, Tensor]:
    """Return the float64 normalised image, and the values within 1e-6 of solarize's threshold.

    Only there rounding can cause a jump: hue is continuous where its cases meet.
    """
    image = crop_HWC.permute(2, 0, 1).double() / 255
    order = int(values[Column.ORDER])
    for column in JITTER_ORDERS[order] if order >= 0 else ():
        image = STEPS[column](image, values[column])
    if values[Column.GRAY]:
        image = tv.rgb_to_grayscale(image, 3)
    if sigma := values[Column.SIGMA]:
        image = tv.gaussian_blur(image, [2 * BLUR_RADIUS + 1] * 2, [sigma, sigma])
    is_near = torch.zeros_like(image)
    if values[Column.SOLARIZE]:
        is_near = ((image - 0.5).abs() < 1e-6).double()
        image = tv.solarize(image, 0.5)
    if values[Column.FLIP]:
        image, is_near = tv.horizontal_flip(image), tv.horizontal_flip(is_near)
    return tv.normalize(image, list(IMAGENET_MEAN), list(IMAGENET_STD)), is_near


def exact_tokens(crops: Tensor, params: Tensor, keep_idx: Tensor, p: int) -> tuple[Tensor, Tensor]:
    """Return tokens_NLV in float64, and which values solarize's threshold cannot change."""
    matrix, grid = torch.tensor(shrink_matrix(p)), crops.shape[1] // p
    tokens = torch.empty(*keep_idx.shape, 3, 16, 16, dtype=torch.float64)
    is_sure = torch.empty(tokens.shape, dtype=torch.bool)
    for n, (crop, values) in enumerate(zip(crops, params.tolist(), strict=True)):
        image, is_near = exact_image(crop, values)
        for i, place in enumerate(keep_idx[n].tolist()):
            y, x = place // grid * p, place % grid * p
            patch, near = (t[:, y : y + p, x : x + p] for t in (image, is_near))
            tokens[n, i] = matrix @ patch @ matrix.T
            is_sure[n, i] = near.amax((1, 2), keepdim=True) == 0 if p > 16 else near == 0
    return tokens.flatten(2), is_sure.flatten(2)


def assert_exact(
    op: Op, crops: Tensor, params: Tensor, keep_idx: Tensor, p: int, cap: float = CAP
) -> None:
    """Compare the error of each sample with the definition's error and with the constant `cap`."""
    exact, is_sure = exact_tokens(crops, params, keep_idx, p)
    ours = op(crops, params, keep_idx, p, torch.float32)
    definition = reference.augment_patchify(crops, params, keep_idx, p)
    assert ours.shape == exact.shape and ours.is_contiguous() and ours.isfinite().all()
    assert is_sure.double().mean() > 0.99
    for n in range(len(crops)):
        error, allowed = (
            float((tokens[n] - exact[n])[is_sure[n]].abs().max()) for tokens in (ours, definition)
        )
        assert error <= 2 * allowed + FLOOR, f"sample {n}: {error} against {allowed}"
        assert max(error, allowed) <= cap, f"sample {n}: {error} and the definition {allowed}"


@pytest.mark.parametrize("p", PATCH_SIDES)
def test_everything_at_once_is_as_exact_as_the_definition(op: Op, p: int) -> None:
    params = torch.cat(
        [
            row(order=4, **STRENGTHS, solarize=1, flip=1),
            row(order=9, **STRENGTHS, sigma=1.7),
            row(order=20, **STRENGTHS, gray=1, sigma=0.6, solarize=1, flip=1),
        ]
    )
    size = 2 * p
    keep_idx = torch.tensor([[0, 3], [1, 2], [3, 1]])
    assert_exact(op, noise(3, size), params, keep_idx, p)


def test_each_step_alone_is_as_exact_as_the_definition(op: Op) -> None:
    params = torch.cat(
        [
            row(),
            *(row(order=0, **{name: value}) for name, value in STRENGTHS.items()),
            row(order=0),
            *(row(**{name: 1}) for name in ("gray", "solarize", "flip")),
            row(sigma=0.1),
            row(sigma=2.0),
        ]
    )
    n = len(params)
    assert_exact(op, noise(n, 32), params, torch.arange(n)[:, None] % 4, 16)


def test_every_order_of_the_jitter_is_the_definitions(op: Op) -> None:
    params = torch.cat([row(order=order, **STRENGTHS) for order in range(len(JITTER_ORDERS))])
    crops = noise(1, 32).expand(len(params), -1, -1, -1)
    assert_exact(op, crops, params, torch.arange(len(params))[:, None] % 4, 16)


def test_extreme_factors_are_as_exact_as_the_definition(op: Op) -> None:
    params = torch.cat(
        [
            *(row(order=0, brightness=factor) for factor in (0.0, 9.0)),
            *(row(order=0, contrast=factor) for factor in (0.0, 9.0)),
            *(row(order=0, saturation=factor) for factor in (0.0, 9.0)),
            *(row(order=0, hue=turn) for turn in (-0.5, 0.5)),
            row(order=23, brightness=3, contrast=3, saturation=3, hue=0.5, gray=1, solarize=1),
            *(row(sigma=sigma) for sigma in (1e-3, 50.0)),
        ]
    )
    n = len(params)
    places = torch.zeros(n, 1, dtype=torch.int64)
    assert_exact(op, noise(n, 16, seed=1), params, places, 16, EXTREME_CAP)


def test_pure_colours_are_as_exact_as_the_definition(op: Op) -> None:
    """Hue's cases meet where two channels are equal; chroma is zero where all three are."""
    levels = [0, 1, 127, 128, 255]
    colours = torch.cartesian_prod(*[torch.tensor(levels, dtype=torch.uint8)] * 3)
    crops = colours.repeat(3, 1)[:256].view(1, 16, 16, 3).expand(3, -1, -1, -1)
    params = torch.cat(
        [
            row(order=17, **STRENGTHS),
            row(order=1, hue=0.25, saturation=1.4),
            row(order=7, **STRENGTHS, solarize=1),
        ]
    )
    assert_exact(op, crops, params, torch.zeros(3, 1, dtype=torch.int64), 16)


def test_a_blur_mirrors_the_crop_at_its_borders(op: Op) -> None:
    blurred = row(sigma=2.0, flip=1)
    assert_exact(op, noise(1, 48), blurred, torch.arange(9)[None], 16)
    for p in (16, 20, 48):
        assert_exact(op, noise(1, p), blurred, torch.zeros(1, 1, dtype=torch.int64), p)


def test_contrast_blends_with_the_mean_of_the_whole_crop(op: Op) -> None:
    """Crops of 240 px have many parts, the last not full; kept patches differ from the others."""
    crops = noise(1, 240) // 2
    crops[:, 48:, :, :2] += 127
    assert_exact(op, crops, row(order=2, **STRENGTHS), torch.tensor([[0, 3, 24]]), 48)


def test_pure_moves_equal_the_definition_bit_for_bit(op: Op) -> None:
    crops = noise(3, 80)
    crops[0, :16, :16] = torch.arange(256, dtype=torch.uint8).view(16, 16, 1)
    params = torch.cat([row(), row(flip=1), row(flip=1)])
    keep_idx = torch.tensor([[0, 6, 12, 24], [0, 4, 20, 24], [7, 7, 1, 7]])
    expected = reference.augment_patchify(crops, params, keep_idx, 16)
    assert torch.equal(op(crops, params, keep_idx, 16, torch.float32), expected)


@pytest.mark.parametrize("p", [16, 24])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_float32_result_rounded_once(
    op: Op, p: int, dtype: torch.dtype
) -> None:
    crops, keep_idx = noise(2, 2 * p), torch.tensor([[2], [1]])
    params = torch.cat([row(order=3, **STRENGTHS), row(sigma=1.2)])
    exact = op(crops, params, keep_idx, p, torch.float32)
    rounded = op(crops, params, keep_idx, p, dtype)
    assert rounded.dtype == dtype
    if dtype == torch.bfloat16 and op is not on_gpu:
        # The interpreter truncates; that the compiled kernel rounds is tested below.
        exact = (exact.view(torch.int32) >> 16 << 16).view(torch.float32)
    assert rounded.equal(exact.to(dtype))


def test_a_place_outside_the_grid_gives_a_token_of_nan_and_touches_no_other(op: Op) -> None:
    crops = noise(2, 48)
    params = torch.cat([row(order=3, **STRENGTHS), row(sigma=1.2)])
    good = torch.tensor([[0, 5, 8, 1], [4, 3, 2, 0]])
    bad = good.clone()
    bad[0, 1], bad[0, 2], bad[1, 0], bad[1, 3] = -1, 9, 2**40, -(2**63)
    expected = op(crops, params, good, 16, torch.float32)
    tokens = op(crops, params, bad, 16, torch.float32)
    assert tokens[bad != good].isnan().all()
    assert torch.equal(tokens[bad == good], expected[bad == good])


def test_samples_of_a_batch_do_not_touch_each_other(op: Op) -> None:
    crops = noise(3, 64)
    params = torch.cat(
        [row(order=3, **STRENGTHS), row(), row(order=8, **STRENGTHS, sigma=1.2, solarize=1)]
    )
    keep_idx = torch.tensor([[1], [0], [15]])
    together = op(crops, params, keep_idx, 16, torch.float32)
    for n in range(3):
        one = slice(n, n + 1)
        assert op(crops[one], params[one], keep_idx[one], 16, torch.float32).equal(together[one])


def test_inputs_may_be_views_and_an_empty_batch_is_an_empty_result(op: Op) -> None:
    crops, params, keep_idx = noise(2, 32), row(flip=1).repeat(2, 1), torch.tensor([[1], [2]])
    expected = op(crops, params, keep_idx, 16, torch.float16)
    views = crops.mT.contiguous().mT, params.T.contiguous().T, keep_idx.T.contiguous().T
    assert op(*views, 16, torch.float16).equal(expected)
    for n, kept in [(0, 3), (2, 0), (0, 0)]:
        places = torch.zeros(n, kept, dtype=torch.int64)
        empty = op(crops[:n], params[:n], places, 16, torch.bfloat16)
        assert empty.shape == (n, kept, 768) and empty.dtype == torch.bfloat16


def many(n: int, p: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return n crops of 240 px on the GPU with every kind of sample, and half of the patches."""
    kinds = [row(order=3, **STRENGTHS), row(flip=1), row(order=8, **STRENGTHS, sigma=1.2, gray=1)]
    places = torch.arange(0, (240 // p) ** 2, 2)
    params = torch.cat(kinds).repeat(n // 3, 1)
    return noise(n, 240).cuda(), params.cuda(), places.repeat(n, 1).cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("p", [16, 30, 48])
def test_two_runs_are_equal_bit_for_bit(p: int) -> None:
    first, second = (triton_kernel.augment_patchify(*many(48, p), p, torch.float32) for _ in "ab")
    assert first.isfinite().all() and torch.equal(first, second)


@pytest.mark.gpu
def test_a_captured_cuda_graph_makes_the_tokens_of_new_inputs() -> None:
    crops, params, keep_idx = many(48, 30)
    triton_kernel.augment_patchify(crops, params, keep_idx, 30, torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = triton_kernel.augment_patchify(crops, params, keep_idx, 30, torch.bfloat16)
    crops.copy_(255 - crops)
    params.copy_(params.roll(1, 0))
    graph.replay()
    expected = triton_kernel.augment_patchify(crops, params, keep_idx, 30, torch.bfloat16)
    assert torch.equal(tokens, expected)


@pytest.mark.gpu
def test_bytes_and_values_may_be_more_than_an_int32_counts() -> None:
    n = 12_501  # of 240 px: 2.16e9 bytes, and as many values
    crops, params = noise(1, 240).cuda().repeat(n, 1, 1, 1), row(order=2, **STRENGTHS).cuda()
    keep_idx = torch.arange(225, device="cuda").repeat(n, 1)
    tokens = triton_kernel.augment_patchify(
        crops, params.repeat(n, 1), keep_idx, 16, torch.bfloat16
    )
    assert tokens.numel() > 2**31 and crops.numel() > 2**31
    assert torch.equal(tokens[n // 2], tokens[0]) and torch.equal(tokens[-1], tokens[0])


@pytest.mark.gpu
def test_it_runs_on_the_device_of_its_inputs() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    here = many(6, 30)
    crops, params, keep_idx = (tensor.to("cuda:1") for tensor in here)
    tokens = triton_kernel.augment_patchify(crops, params, keep_idx, 30, torch.float32)
    assert tokens.device == crops.device
    assert torch.equal(tokens.cpu(), triton_kernel.augment_patchify(*here, 30, torch.float32).cpu())


@pytest.mark.parametrize(
    ("p", "dtype", "kind"),
    [
        (p, dtype, kind)
        for p, dtype in zip(PATCH_SIDES, ("bf16", "fp16", "fp32") * 2, strict=True)
        for kind in triton_kernel.kinds(p)
    ],
)
def test_it_compiles_for_an_sm_90_without_a_gpu_and_spills_no_registers(
    p: int, dtype: str, kind: int, tmp_path: Path
) -> None:
    tile, wide = triton.next_power_of_2(p), triton_kernel.width(p, kind)
    types = dict.fromkeys(("size", "kept", "parts"), "i32")
    types |= dict.fromkeys(("rows", "sums", "shrink"), "*fp32")
    types |= {"tokens": f"*{dtype}", "crops": "*u8", "keep_idx": "*i64"}
    constants = {"PARTS": 32, "P": p, "KIND": kind, "TILE": tile, "WIDE": wide}
    told = constants | {"num_warps": triton_kernel.WARPS[wide]}
    code = kernel_code("_make_tokens", types, told)
    assert stack_bytes(code.asm["cubin"], tmp_path) <= 32
    assert code.metadata.shared <= 99 * 1024  # what a block of any GPU since Ampere may have
    assert "div.rn.f32" in code.asm["ptx"] and "tf32" not in code.asm["ptx"]
    if dtype != "fp32":
        half = dtype.replace("fp", "f")
        assert set(re.findall(rf"cvt\.(\w+)\.{half}", code.asm["ptx"])) == {"rn"}


def test_the_sums_compile_for_an_sm_90_without_a_gpu(tmp_path: Path) -> None:
    types = {"sums": "*fp32", "crops": "*u8", "rows": "*fp32", "size": "i32", "parts": "i32"}
    told = {"PIXELS": triton_kernel.PART_PIXELS, "num_warps": triton_kernel.PART_WARPS}
    code = kernel_code("_sum_gray", types, told)
    assert stack_bytes(code.asm["cubin"], tmp_path) == 0


def kernel_code(name: str, types: dict[str, str], told: dict[str, int]) -> Any:
    """Return the kernel as compiled by Triton."""
    if triton.knobs.runtime.interpret:
        pytest.skip("TRITON_INTERPRET is set")
    return compiled(getattr(triton_kernel, name), told, 90, types)


def test_no_argument_has_a_name_that_triton_uses_itself() -> None:
    """Triton 3.6 launches through a generated function with variables of these names."""
    for name in ("_sum_gray", "_make_tokens"):
        kernel = getattr(triton_kernel, name)
        assert not {"params", "options", "bound_args"} & set(kernel.arg_names)
