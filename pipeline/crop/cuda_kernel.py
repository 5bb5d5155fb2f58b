"""Load and launch the crop kernel in CUDA C++ (crop.cu).

A call copies one small table to the device and makes one launch, both on the current stream of the
images' device.
"""

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accelssl.pipeline.crop.images import CHANNELS, Images
from accelssl.pipeline.crop.kernel_source import (
    BLOCKS,
    machine_code,
    shared_bytes,
    threads,
)
from accelssl.pipeline.cuda.driver import functions, launch

# Rows of a crop per block. Neighbouring blocks both read the image's rows between them, so long
# strips are better, unless there are too few blocks for the device.
_LONG_STRIP, _SHORT_STRIP = 48, 16


class _Kernel(NamedTuple):
    """Loaded kernel; `module` keeps it loaded."""

    module: Any
    crop: Any


def crop(images: Images, windows_VN4: NDArray[np.float32], size: int) -> Tensor:
    """Return crops_VNHWC for inputs that keep the contract of crop.py."""
    views, n = windows_VN4.shape[:2]
    device = images.device
    crops = torch.empty((views, n, size, size, CHANNELS), dtype=torch.uint8, device=device)
    if not crops.numel():
        return crops
    kernel = load(crops.device.index)
    with torch.cuda.device(crops.device):
        strip = _rows_of_a_strip(views * n, size, crops.device.index)
        table, (ptrs, sizes, windows) = _table(images, windows_VN4, crops.device)
        arguments = (ptrs, sizes, windows, crops.data_ptr(), n, views, size, strip)
        types = (ctypes.c_void_p,) * 4 + (ctypes.c_int,) * 4
        shape = (views * n * -(-size // strip), threads(size), shared_bytes())
        launch(kernel.crop, shape, torch.cuda.current_stream().cuda_stream, arguments, types)
    del table  # torch reuses its memory only after the launch, in the order of the stream
    return crops


@cache
def load(device: int) -> _Kernel:
    """Compile the kernel, or read it from the disk cache, and load it on a device."""
    major, minor = torch.cuda.get_device_capability(device)
    code = machine_code(f"sm_{major}{minor}")
    return _Kernel(*functions(device, code, ("crop",), shared_bytes()))


def _table(
    images: Images, windows_VN4: NDArray[np.float32], device: torch.device
) -> tuple[Tensor, list[int]]:
    """Copy ptrs, sizes and windows to the device as one table. Return it and their addresses."""
    parts = [images.ptrs_N.numpy(), images.sizes_N2.numpy(), windows_VN4]
    ends = np.cumsum([part.nbytes for part in parts])
    pinned = torch.empty(int(ends[-1]), dtype=torch.uint8, pin_memory=True)
    pinned.numpy()[:] = np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])
    table = pinned.to(device, non_blocking=True)
    begins = [table.data_ptr(), *(table.data_ptr() + int(end) for end in ends[:-1])]
    return table, begins


def _rows_of_a_strip(crops: int, size: int, device: int) -> int:
    at_a_time = BLOCKS * torch.cuda.get_device_properties(device).multi_processor_count
    blocks = crops * -(-size // _LONG_STRIP)
    return _LONG_STRIP if blocks >= 4 * at_a_time else _SHORT_STRIP
