"""Kernels are sorted by their names and places, and with the gaps between them add up to a step."""

import pytest

from accelssl.benchmarks.step.kernels import MARK, PARTS, Kernel, Part, part_of, traced_steps
from accelssl.benchmarks.step.result import longest_kernels, part_times

NAMES: dict[Part, tuple[str, ...]] = {
    "matrix products": (
        "nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_splitK_TNT",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>(...)",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x1_tn>",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, float, 128>",
        "triton_tem_fused_addmm_view_7",
        "aten::linear",
        "aten::mm",
    ),
    "attention": (
        "void cudnn::fusion::compute_dot_do_o_specialized<true, 128, 64>(...)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7_64x64x64",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass>>",
        "fmha_cutlassB_bf16_aligned_64x64_k64_dropout_sm80",
        "short_attention_forward",
        "short_attention_backward",
        "short_attention_tiles_backward",
        "triton_per_fused__softmax_mul_3",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "layer norm": (
        "triton_per_fused__to_copy_add_native_layer_norm_native_layer_norm_backward_12",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(...)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float>",
        "add_norm_forward",
        "add_norm_backward",
        "add_norm_sums",
        "accelssl::add_norm_backward",
        "aten::native_layer_norm_backward",
    ),
    "activation": (
        "triton_poi_fused_gelu_gelu_backward_view_4",
        "triton_red_fused_gelu_gelu_backward_sum_view_5",
        "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(...)>",
        "gelu_forward",
        "gelu_backward",
        "gelu_sums",
        "aten::gelu",
    ),
    "other": (
        "triton_poi_fused_clone_permute_stack_8",
        "triton_poi_fused__to_copy_3",
        "triton_poi_fused__scaled_dot_product_flash_attention_transpose_2",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, ...>",
        "aten::mul",
        "aten::cat",
    ),
    "optimiser": (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::"
        "(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous "
        "namespace)::FusedAdamMathFunctor<float, 4, ...>>",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::"
        "(anonymous namespace)::TensorListMetadata<1>, at::native::BinaryOpScalarFunctor<...>>",
        "Optimizer.step#AdamW.step aten::lerp_",
    ),
    "EMA": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::lerp_tensor_kernel(...)>",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<LerpFunctor<float>>",
        "aten::lerp_",
    ),
    "copies": ("Memset (Unknown)", "Memcpy DtoD (Device -> Device)"),
    "communication": ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",),
}


@pytest.mark.parametrize(("part", "name"), [(p, n) for p, names in NAMES.items() for n in names])
def test_a_kernel_belongs_to_the_part_that_its_name_tells(part: Part, name: str) -> None:
    assert part_of(name) == part


def of_step(begin_s: float) -> list[Kernel]:
    """Ten seconds: a product, the head's product, layer norm and Adam, a second apart but for the
    last two, which overlap by half a second."""
    kernels = [
        (MARK, 0, 0.25),
        ("nvjet_encoder", 1, 3),
        (MARK, 3, 3.25),
        ("nvjet_head", 4, 5),
        ("ncclDevKernel_AllGather", 5, 5.5),
        (MARK, 5.5, 5.75),
        ("native_layer_norm", 6.5, 8),
        ("FusedAdam", 7.5, 9),
    ]
    return [Kernel(name, begin_s + start, begin_s + end) for name, start, end in kernels]


def made_up_trace(steps: int) -> list[Kernel]:
    kernels = [kernel for step in range(steps) for kernel in of_step(10.0 * step)]
    return [*kernels, Kernel(MARK, 10.0 * steps, 10.0 * steps + 0.25)]


def test_every_moment_of_a_step_is_a_part_or_a_gap() -> None:
    steps = traced_steps(reversed(made_up_trace(3)))
    assert len(steps) == 2  # the first is not counted
    for step in steps:
        assert [(work.part, work.own_s) for work in step.works] == [
            ("matrix products", 2.0),
            ("heads and loss", 1.0),
            ("communication", 0.5),
            ("layer norm", 1.5),
            ("optimiser", 1.0),  # what it shares with the norm is the norm's
        ]
        assert step.busy_s == 6.0
        assert step.seconds == 9.75  # from the end of a mark to the next
        assert step.idle_s == 3.75


def test_a_kernel_within_a_longer_one_takes_nothing() -> None:
    inside = Kernel("FusedAdam", 11.5, 12.0)
    (step,) = traced_steps([*made_up_trace(2), inside])
    assert [work.own_s for work in step.works if work.name == "FusedAdam"] == [0.0, 1.0]
    assert step.busy_s == 6.0


def test_a_trace_that_lost_a_mark_is_refused() -> None:
    whole = made_up_trace(3)
    with pytest.raises(RuntimeError, match="9 marks"):
        traced_steps(whole[1:])
    with pytest.raises(RuntimeError, match="4 marks"):
        traced_steps(made_up_trace(1))  # nothing but the first
    with pytest.raises(RuntimeError, match="0 marks"):
        traced_steps([])


def test_parts_are_means_of_all_steps_and_add_up() -> None:
    longer = made_up_trace(3)
    longer[-2] = Kernel("FusedAdam", 27.5, 29.5)  # of the last step, by half a second
    parts = part_times(traced_steps(longer), {"matrix products": 0.5})
    assert [part.part for part in parts] == list(PARTS)
    found = {part.part: part for part in parts}
    assert found["optimiser"].seconds == 1.25
    assert found["gaps"].seconds == 3.5
    assert sum(part.seconds for part in parts) == 9.75
    assert (found["optimiser"].launches, found["gaps"].launches, found["EMA"].launches) == (1, 0, 0)
    assert (found["matrix products"].seconds, found["matrix products"].floor_s) == (2.0, 0.5)
    assert found["optimiser"].floor_s is None


def test_the_longest_kernels_are_told_by_name_and_part() -> None:
    longest = longest_kernels(traced_steps(made_up_trace(2)))
    assert [(kernel.name, kernel.seconds) for kernel in longest[:2]] == [
        ("nvjet_encoder", 2.0),
        ("native_layer_norm", 1.5),
    ]
    assert {kernel.name: kernel.part for kernel in longest}["nvjet_head"] == "heads and loss"
