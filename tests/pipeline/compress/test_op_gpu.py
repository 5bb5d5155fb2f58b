"""GPU implementations of the op: errors against the definition in float64, and use in PyTorch.

Bounds: tokens without arithmetic are equal to the last bit. Otherwise the largest and the mean
error against float64 are at most twice the definition's in the same precision. Exceptions are
values so near to solarize's threshold, or to a change of the largest colour, that rounding decides.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from accelssl.pipeline import views
from accelssl.pipeline.compress import reference
from accelssl.pipeline.compress.op import Implementation, augment_patchify
from accelssl.pipeline.compression import PATCH_SIDES
from accelssl.pipeline.draws.augmentation import JITTER_ORDERS, Column, augmentation, identity

pytestmark = pytest.mark.gpu
GPU_IMPLEMENTATIONS: list[Implementation] = ["cuda", "triton"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float16"])
both = pytest.mark.parametrize("implementation", GPU_IMPLEMENTATIONS)


def crops_of(n: int, side: int, rng: np.random.Generator) -> Tensor:
    """Return crops with noise, smooth colours, grays and every byte value."""
    crops = rng.integers(0, 256, (n, side, side, 3), dtype=np.uint8)
    ramp = np.linspace(0, 255, side).astype(np.uint8)
    crops[0::4] = np.stack(np.broadcast_arrays(ramp, ramp[:, None], ramp[::-1]), axis=-1)
    crops[1::4] = crops[1::4, :, :, :1]
    return torch.from_numpy(crops)


def places(n: int, patches: int, kept: int, rng: np.random.Generator) -> Tensor:
    rows = [rng.permutation(patches)[:kept] for _ in range(n)]
    return torch.from_numpy(np.array(rows, dtype=np.int64).reshape(n, kept))


def random_params(n: int, seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    params = augmentation(views.simclr(240)[0], 0, seed, 0, np.arange(n))
    params[:, Column.SOLARIZE] = rng.integers(0, 2, n)
    return torch.from_numpy(params)


def assert_as_near_as_the_definition(
    tokens: Tensor, crops: Tensor, params: Tensor, keep: Tensor, p: int
) -> None:
    exact = reference.augment_patchify(crops, params, keep, p, torch.float64)
    plain = reference.augment_patchify(crops, params, keep, p).to(tokens.dtype)
    assert tokens.isfinite().all()
    ours, theirs = (t.double().sub(exact).abs() for t in (tokens.cpu(), plain))
    # One value in ten thousand may fall on the other side of a threshold, in either of the two.
    worst_N = max(1, ours.numel() // 10_000)
    ours_sorted, theirs_sorted = ours.flatten().sort().values, theirs.flatten().sort().values
    assert float(ours_sorted[-worst_N]) <= 2 * float(theirs_sorted[-worst_N]) + 1e-6
    assert float(ours.mean()) <= 2 * float(theirs.mean()) + 1e-7


@both
@by_dtype
@pytest.mark.parametrize("p", PATCH_SIDES)
def test_tokens_are_as_near_to_float64_as_the_definitions(
    p: int, dtype: torch.dtype, implementation: Implementation
) -> None:
    seed = int(torch.randint(2**31, ()))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for side in (240, 2 * p):
        n, patches = 12, (side // p) ** 2
        crops, params = crops_of(n, side, rng), random_params(n, seed)
        keep = places(n, patches, max(1, patches // 3), rng)
        tokens = augment_patchify(
            crops.cuda(), params.cuda(), keep.cuda(), p, dtype, implementation
        )
        assert_as_near_as_the_definition(tokens, crops, params, keep, p)


@both
def test_every_order_of_the_jitter_is_followed(implementation: Implementation) -> None:
    n = len(JITTER_ORDERS)
    rng = np.random.default_rng(1)
    crops, params = crops_of(n, 96, rng), torch.from_numpy(identity(n))
    params[:, Column.ORDER] = torch.arange(n).float()
    params[:, Column.BRIGHTNESS : Column.HUE] = torch.tensor([1.4, 0.5, 1.7])
    params[:, Column.HUE] = torch.linspace(-0.5, 0.5, n)
    keep = torch.arange(36).repeat(n, 1)
    tokens = augment_patchify(
        crops.cuda(), params.cuda(), keep.cuda(), 16, torch.float32, implementation
    )
    assert_as_near_as_the_definition(tokens, crops, params, keep, 16)


@both
@by_dtype
def test_moves_are_equal_to_the_last_bit(
    dtype: torch.dtype, implementation: Implementation
) -> None:
    rng = np.random.default_rng(2)
    crops = torch.from_numpy(rng.integers(0, 256, (16, 240, 240, 3), dtype=np.uint8))
    params = torch.from_numpy(identity(16))
    params[::2, Column.FLIP] = 1
    keep = places(16, 225, 225, rng)
    tokens = augment_patchify(crops.cuda(), params.cuda(), keep.cuda(), 16, dtype, implementation)
    assert torch.equal(tokens.cpu(), augment_patchify(crops, params, keep, 16, dtype))


@both
@pytest.mark.parametrize(("n", "kept"), [(1, 1), (1, 64), (3, 1), (5, 63), (0, 4), (2, 0)])
def test_any_number_of_crops_and_patches(n: int, kept: int, implementation: Implementation) -> None:
    rng = np.random.default_rng(3)
    crops, params = crops_of(n, 240, rng), random_params(n, 3)
    keep = places(n, 64, kept, rng)
    tokens = augment_patchify(
        crops.cuda(), params.cuda(), keep.cuda(), 30, torch.float32, implementation
    )
    assert tokens.shape == (n, kept, 768)
    if tokens.numel():
        assert_as_near_as_the_definition(tokens, crops, params, keep, 30)


@both
@pytest.mark.parametrize("p", PATCH_SIDES)
def test_every_element_is_written(
    p: int, implementation: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(p)
    n, patches = 9, (240 // p) ** 2
    crops, params = crops_of(n, 240, rng).cuda(), random_params(n, p).cuda()
    keep = places(n, patches, patches - 1, rng).cuda()
    empty = torch.empty

    def poisoned(*args: object, **options: object) -> Tensor:
        tensor: Tensor = empty(*args, **options)  # type: ignore[call-overload]
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
    tokens = augment_patchify(crops, params, keep, p, torch.bfloat16, implementation)
    assert tokens.isfinite().all()


@both
def test_inputs_need_not_be_contiguous(implementation: Implementation) -> None:
    rng = np.random.default_rng(4)
    crops, params = crops_of(8, 240, rng).cuda(), random_params(8, 4).cuda()
    keep = places(8, 225, 50, rng).cuda()
    expected = augment_patchify(crops, params, keep, 16, torch.float32, implementation)
    nchw = crops.permute(0, 3, 1, 2)
    odd = torch.empty(crops.numel() + 1, dtype=torch.uint8, device="cuda")[1:].view(crops.shape)
    odd.copy_(crops)
    strided = torch.stack([crops, crops], dim=1).flatten(0, 1)[::2]
    for same in (nchw, nchw.contiguous(), odd, strided):
        wide_params = torch.cat([params, params], dim=1)[:, : params.shape[1]]
        wide_keep = keep.t().contiguous().t()
        tokens = augment_patchify(same, wide_params, wide_keep, 16, torch.float32, implementation)
        assert torch.equal(tokens, expected)


@both
def test_it_passes_opcheck(implementation: Implementation) -> None:
    rng = np.random.default_rng(5)
    arguments = (
        crops_of(3, 60, rng).cuda(),
        random_params(3, 5).cuda(),
        places(3, 4, 2, rng).cuda(),
    )
    torch.library.opcheck(
        torch.ops.accelssl.augment_patchify.default,
        (*arguments, 30, torch.bfloat16, implementation),
    )


@both
def test_it_runs_in_a_compiled_function_without_a_graph_break(
    implementation: Implementation,
) -> None:
    rng = np.random.default_rng(6)
    crops, params = crops_of(4, 240, rng).cuda(), random_params(4, 6).cuda()
    keep = places(4, 64, 32, rng).cuda()

    def doubled(c: Tensor, a: Tensor, k: Tensor) -> Tensor:
        return augment_patchify(c, a, k, 30, torch.bfloat16, implementation) * 2

    compiled = torch.compile(doubled, fullgraph=True)
    assert torch.equal(compiled(crops, params, keep), doubled(crops, params, keep))


@both
def test_it_can_be_captured_in_a_cuda_graph(implementation: Implementation) -> None:
    rng = np.random.default_rng(7)
    crops, params = crops_of(8, 240, rng).cuda(), random_params(8, 7).cuda()
    keep = places(8, 64, 20, rng).cuda()
    augment_patchify(crops, params, keep, 30, torch.bfloat16, implementation)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = augment_patchify(crops, params, keep, 30, torch.bfloat16, implementation)
    for seed in (8, 9):
        rng = np.random.default_rng(seed)
        crops.copy_(crops_of(8, 240, rng))
        params.copy_(random_params(8, seed))
        keep.copy_(places(8, 64, 20, rng))
        graph.replay()
        expected = augment_patchify(crops, params, keep, 30, torch.bfloat16, implementation)
        assert torch.equal(captured, expected)


@both
def test_it_runs_on_the_current_stream(implementation: Implementation) -> None:
    rng = np.random.default_rng(10)
    crops, params = crops_of(64, 240, rng).cuda(), random_params(64, 10).cuda()
    keep = places(64, 64, 32, rng).cuda()
    expected = augment_patchify(crops, params, keep, 30, torch.float32, implementation)
    torch.cuda.synchronize()
    load = torch.randn(4000, 4000, device="cuda")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    late = torch.zeros_like(crops)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(20):
            load = load @ load / 60
        late.copy_(crops)  # seen only by what comes after it on this stream
        tokens = augment_patchify(late, params, keep, 30, torch.float32, implementation)
    side.synchronize()
    assert torch.equal(tokens, expected)


@both
def test_tokens_beyond_two_to_the_31_elements(implementation: Implementation) -> None:
    if torch.cuda.mem_get_info()[0] < 14e9:
        pytest.skip("needs 14 GB of GPU memory")
    n, kept = 12_500, 225  # 2.16e9 values, and 2.16e9 bytes of crops
    crops = torch.randint(0, 256, (n, 240, 240, 3), dtype=torch.uint8, device="cuda")
    params = torch.from_numpy(identity(n))
    params[:, Column.FLIP] = torch.arange(n) % 2
    keep = torch.arange(kept, device="cuda").repeat(n, 1)
    tokens = augment_patchify(crops, params.cuda(), keep, 16, torch.bfloat16, implementation)
    for i in (0, n // 2, n - 2, n - 1):
        expected = augment_patchify(
            crops[i : i + 1].cpu(), params[i : i + 1], keep[:1].cpu(), 16, torch.bfloat16
        )
        assert torch.equal(tokens[i : i + 1].cpu(), expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@both
def test_it_runs_where_its_inputs_are(implementation: Implementation) -> None:
    rng = np.random.default_rng(12)
    crops, params, keep = crops_of(4, 240, rng), random_params(4, 12), places(4, 64, 20, rng)
    first, second = (
        augment_patchify(
            crops.to(device), params.to(device), keep.to(device), 30, torch.float32, implementation
        )
        for device in ("cuda:0", "cuda:1")
    )
    assert second.device.index == 1
    assert torch.equal(first.cpu(), second.cpu())
