"""Comparison of the op with DALI: DALI augments, then torch makes patches and tokens.

DALI's fastest way to SimCLR's view: one fused color_twist, blur for those samples alone that have
it (a conditional), one crop_mirror_normalize, which also flips; 8 bits in between, float16 in the
end. It does less than the op: its jitter has one order, its contrast a fixed gray and its hue the
plane of YIQ, and nothing is solarized. So its tokens differ where colours are jittered or
solarized, and its time is that of less work.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from accelssl.benchmarks.kernel.inputs import Inputs
from accelssl.pipeline.compress import reference
from accelssl.pipeline.decode.output_leases import OutputLeases
from accelssl.pipeline.draws.augmentation import Column

try:
    import nvidia.dali.fn as fn
    import nvidia.dali.types as types
    from nvidia.dali import Pipeline, pipeline_def
except ImportError as error:
    raise ImportError(f"NVIDIA DALI cannot be imported ({error})") from error

PARAMETERS = 7  # is_blurred, sigma, flip, brightness, contrast, saturation, hue
WINDOW = 2 * reference.BLUR_RADIUS + 1


@pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
def _graph(crops: Iterator[Any], params: Iterator[Any], on_gpu: bool) -> Any:
    images = fn.external_source(
        source=crops, device="gpu" if on_gpu else "cpu", layout="HWC", batch=True, no_copy=True
    )
    is_blurred, sigma, flip, brightness, contrast, saturation, hue = fn.external_source(
        source=params, num_outputs=PARAMETERS, batch=True
    )
    images = fn.color_twist(
        images, brightness=brightness, contrast=contrast, saturation=saturation, hue=hue
    )
    if is_blurred:
        images = fn.gaussian_blur(images, sigma=sigma, window_size=WINDOW)
    return fn.crop_mirror_normalize(
        images,
        mirror=flip,
        mean=[255 * x for x in reference.IMAGENET_MEAN],
        std=[255 * x for x in reference.IMAGENET_STD],
        dtype=types.FLOAT16 if on_gpu else types.FLOAT,
        output_layout="CHW",
    )


class DaliChain:
    """Called, gives tokens_NLV in `dtype`: of the first set of inputs, the second, ..., the first.

    The sets must be of one shape and stay unchanged. On a GPU, DALI works ahead by two batches.
    """

    def __init__(
        self, sets: Sequence[Inputs], p: int, dtype: torch.dtype, threads: int = 4
    ) -> None:
        device = sets[0].crops_NHWC.device
        self._device, self._p, self._dtype = device, p, dtype
        self._leases = OutputLeases()
        self._keep_idx = cycle([inputs.keep_idx_NL for inputs in sets])
        on_gpu = device.type == "cuda"
        # As NumPy's on the CPU: of torch's tensors DALI asks the CUDA stream.
        crops = [x.crops_NHWC if on_gpu else x.crops_NHWC.numpy() for x in sets]
        self._pipeline: Pipeline = _graph(
            crops=cycle(crops),
            params=cycle([_parameters(inputs.params_NP) for inputs in sets]),
            on_gpu=on_gpu,
            batch_size=len(sets[0].crops_NHWC),
            num_threads=threads,
            device_id=(device.index or 0) if on_gpu else None,
            prefetch_queue_depth=2,
        )

    def __call__(self) -> Tensor:
        stream = torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None
        self._leases.end_last()
        (output,) = self._pipeline.run(stream)
        if stream:
            self._leases.add(output, stream)
        images_NCHW: Tensor = torch.utils.dlpack.from_dlpack(output.as_tensor())
        patches = reference.kept_patches(images_NCHW, next(self._keep_idx), self._p)
        return reference.shrink(patches).to(self._dtype)


def _parameters(params_NP: Tensor) -> tuple[Any, ...]:
    """Return the op's parameters in DALI's form, one array for each of PARAMETERS."""
    params = params_NP.cpu().numpy()
    is_jittered = params[:, Column.ORDER] >= 0
    names = (Column.BRIGHTNESS, Column.CONTRAST, Column.SATURATION)
    brightness, contrast, saturation = (
        np.where(is_jittered, params[:, name], 1).astype(np.float32) for name in names
    )
    saturation[params[:, Column.GRAY] > 0] = 0
    sigma = params[:, Column.SIGMA].copy()
    is_blurred = sigma > 0
    sigma[~is_blurred] = 1  # not looked at
    hue = np.where(is_jittered, params[:, Column.HUE] * 360, 0).astype(np.float32)
    flip = params[:, Column.FLIP].astype(np.int32)
    return is_blurred, sigma, flip, brightness, contrast, saturation, hue
