"""Crop all views of a batch of decoded images in one launch: contract, checks, public function.

A GPU runs the kernel of crop.cu, compiled at first use; a CPU runs the definition (definition.py).
Both agree with DALI's fn.resize to one level. Unlike fn.resize, the kernel reads a pixel once per
view and keeps the values between its two passes out of global memory.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accelssl.pipeline.crop.definition import crop_image
from accelssl.pipeline.crop.images import CHANNELS, Images
from accelssl.pipeline.cuda.nvrtc import CompilationFailed

SIZES = range(16, 513)
"""Supported sides of crops, in pixels."""

Windows = Tensor | NDArray[np.float32]


def crop(images: Images, windows: Windows | Sequence[Windows], size: int) -> Tensor:
    """Resize windows of N images. Return uint8 crops_VNHWC, H = W = size, on the images' device.

    windows: windows_VN4, or a windows_N4 for each of V views, on the CPU: float32 (top, left,
    bottom, right) in pixels, which may be fractions. On a GPU the kernel runs on the current stream
    and the call does not wait.

    Raises ValueError with the wrong value for a window that is empty or outside its image, and for
    other shapes, dtypes, devices or sizes. Raises CompilationFailed if `unavailable` is not None.
    """
    windows_VN4 = _checked(images, windows, size)
    if images.device.type == "cuda":
        # Imported when first used: the CUDA libraries may be missing.
        from accelssl.pipeline.crop import cuda_kernel

        return cuda_kernel.crop(images, windows_VN4, size)
    return _on_cpu(images, windows_VN4, size)


def unavailable(device: torch.device) -> str | None:
    """Compile the kernel for a device. Return why `crop` cannot run there, or None if it can."""
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        return f"there is no kernel for {device.type}"
    from accelssl.pipeline.crop import cuda_kernel

    try:
        cuda_kernel.load(torch.cuda.current_device() if device.index is None else device.index)
    except CompilationFailed as error:
        return str(error)
    return None


def _on_cpu(images: Images, windows_VN4: NDArray[np.float32], size: int) -> Tensor:
    views, n = windows_VN4.shape[:2]
    crops = torch.empty((views, n, size, size, CHANNELS), dtype=torch.uint8)
    for i, (address, (height, width)) in enumerate(
        zip(images.ptrs_N.tolist(), images.sizes_N2.tolist(), strict=True)
    ):
        memory = (ctypes.c_uint8 * (height * width * CHANNELS)).from_address(address)
        image = torch.frombuffer(memory, dtype=torch.uint8).view(height, width, CHANNELS)
        for view in range(views):
            crops[view, i] = crop_image(image, torch.from_numpy(windows_VN4[view, i]), size)
    return crops


def _checked(
    images: Images, windows: Windows | Sequence[Windows], size: int
) -> NDArray[np.float32]:
    if images.device.type not in ("cpu", "cuda"):
        raise ValueError(f"images are on {images.device}: need the CPU or a CUDA device.")
    if not isinstance(size, int) or size not in SIZES:
        raise ValueError(f"size {size}: need {SIZES.start} to {SIZES.stop - 1}.")
    each = windows if isinstance(windows, Sequence) else list(windows)
    for view, w in enumerate(each):
        _check_view(view, w, len(images))
    if not each:
        return np.empty((0, len(images), 4), dtype=np.float32)
    windows_VN4 = np.stack([w.detach().numpy() if isinstance(w, Tensor) else w for w in each])
    _check_places(windows_VN4, images.sizes_N2.numpy())
    return windows_VN4


def _check_view(view: int, windows_N4: Windows, n: int) -> None:
    if not isinstance(windows_N4, Tensor | np.ndarray):
        raise ValueError(
            f"windows of view {view} are a {type(windows_N4).__name__}: need an array."
        )
    on_cpu = not isinstance(windows_N4, Tensor) or windows_N4.device.type == "cpu"
    is_float32 = windows_N4.dtype in (torch.float32, np.float32)
    if not on_cpu or not is_float32 or tuple(windows_N4.shape) != (n, 4):
        where = "the CPU" if on_cpu else "a device"
        raise ValueError(
            f"windows of view {view} are {windows_N4.dtype} {tuple(windows_N4.shape)} on {where}: "
            f"need float32 {(n, 4)} on the CPU."
        )


def _check_places(windows_VN4: NDArray[np.float32], sizes_N2: NDArray[np.int32]) -> None:
    low, high = windows_VN4[..., :2], windows_VN4[..., 2:]
    # Written so that NaN fails as well.
    right = ((low >= 0) & (low < high) & (high <= sizes_N2)).all(axis=2)
    if not right.all():
        view, i = np.argwhere(~right)[0].tolist()
        height, width = sizes_N2[i].tolist()
        raise ValueError(
            f"window {windows_VN4[view, i].tolist()} of view {view}, image {i}: need "
            f"0 <= top < bottom <= {height} and 0 <= left < right <= {width}."
        )
