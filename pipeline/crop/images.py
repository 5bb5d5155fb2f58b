"""Decoded images where the decoder left them: addresses and sizes, and what keeps them alive."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHANNELS = 3
MAX_EXTENT = 2**24
"""Pixels of a side, at most: as far as float32 counts."""


@dataclass(frozen=True)
class Images:
    """N decoded images on one device: uint8, RGB, HWC, without gaps between rows.

    ptrs_N: int64, addresses, of any alignment; sizes_N2: int32, (height, width); both on the CPU.
    owner keeps the memory alive. Raises ValueError, naming the value, for anything else.
    """

    ptrs_N: Tensor
    sizes_N2: Tensor
    device: torch.device
    owner: object = field(repr=False)

    def __post_init__(self) -> None:
        n = len(self.ptrs_N)
        for name, dtype, shape in (
            ("ptrs_N", torch.int64, (n,)),
            ("sizes_N2", torch.int32, (n, 2)),
        ):
            tensor: Tensor = getattr(self, name)
            if tensor.dtype != dtype or tuple(tensor.shape) != shape or tensor.is_cuda:
                raise ValueError(
                    f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}: "
                    f"need {dtype} {shape} on the CPU."
                )
        if n:
            least, most = int(self.sizes_N2.min()), int(self.sizes_N2.max())
            if least < 1 or most > MAX_EXTENT:
                raise ValueError(f"sizes run from {least} to {most}: need 1 to {MAX_EXTENT}.")

    def __len__(self) -> int:
        return len(self.ptrs_N)

    @classmethod
    def of_tensors(cls, images: Sequence[Tensor], device: torch.device) -> "Images":
        """Images that are tensors: contiguous uint8 (H, W, 3) on `device`.

        Raises ValueError, naming the image, for others.
        """
        for i, image in enumerate(images):
            fits = image.dtype == torch.uint8 and image.ndim == 3 and image.shape[2] == CHANNELS
            if not fits or not image.is_contiguous() or image.device != device:
                raise ValueError(
                    f"image {i} is {image.dtype} {tuple(image.shape)} with strides "
                    f"{image.stride()} on {image.device}: need contiguous uint8 (H, W, 3) "
                    f"on {device}."
                )
        sizes = [tuple(image.shape[:2]) for image in images]
        sizes_N2 = torch.tensor(sizes, dtype=torch.int32).reshape(-1, 2)
        ptrs_N = torch.tensor([image.data_ptr() for image in images], dtype=torch.int64)
        return cls(ptrs_N, sizes_N2, device, list(images))

    @classmethod
    def of_dali(cls, images: Any, device: torch.device) -> "Images":
        """Images that DALI's decoder made: a TensorListGPU (or TensorListCPU) in layout HWC.

        They are ready in the order of the stream that DALI's pipeline was run with; on a GPU
        `owner` does not keep them from being overwritten (output_leases.py does). Raises
        ValueError, naming the image, when one has not three channels.
        """
        shapes_N3 = np.array(images.shape(), dtype=np.int64)
        _check_channels(shapes_N3)
        ptrs_N = torch.from_numpy(_addresses(images, shapes_N3))
        return cls(ptrs_N, torch.from_numpy(shapes_N3[:, :2].astype(np.int32)), device, images)


def _check_channels(shapes_N3: NDArray[np.int64]) -> None:
    n, dimensions = shapes_N3.shape
    is_right_N = shapes_N3[:, -1] == CHANNELS if dimensions == 3 else np.zeros(n, dtype=bool)
    if not is_right_N.all():
        row = int(is_right_N.argmin())
        wrong = tuple(shapes_N3[row].tolist())
        raise ValueError(f"image {row} is {wrong}: need (H, W, 3).")


def _addresses(images: Any, shapes_N3: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the images of DALI's list: a sum, where they lie one behind the other, as each
    that is asked for costs microseconds of Python's lock."""
    try:
        first = images.data_ptr()  # a RuntimeError where they lie apart
    except RuntimeError:
        return np.array([images[i].data_ptr() for i in range(len(images))], dtype=np.int64)
    sizes_bytes_N: NDArray[np.int64] = shapes_N3.prod(axis=1)
    ends_N: NDArray[np.int64] = first + sizes_bytes_N.cumsum()
    return ends_N - sizes_bytes_N
