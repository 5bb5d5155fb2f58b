"""Decoded images in the decoder's memory: their addresses and sizes.

Legend of shape suffixes: N images, 2 = (height, width), 3 = (height, width, channels).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CHANNELS = 3
MAX_EXTENT = 2**24
"""Largest side in pixels: the largest range of integers that float32 represents exactly."""


@dataclass(frozen=True)
class Images:
    """Batch of N decoded images on one device: uint8, RGB, HWC, without gaps between rows.

    ptrs_N: int64 addresses with any alignment. sizes_N2: int32 (height, width). Both are on the
    CPU. owner keeps the memory alive. Raises ValueError with the wrong value for other inputs.
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
        """Return Images of tensors: contiguous uint8 (H, W, 3) on `device`.

        Raises ValueError with the image's index for other tensors.
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
        """Return Images of DALI's decoder: a TensorListGPU (or TensorListCPU) in layout HWC.

        The images are ready in the order of the stream that ran DALI's pipeline. On a GPU `owner`
        does not stop DALI from overwriting them; an output lease does (output_leases.py). Raises
        ValueError with the image's index if an image does not have three channels.
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
    """Return the addresses of the images in a DALI list.

    Contiguous images need one call and a sum; a call per image would hold Python's lock for
    microseconds each.
    """
    try:
        first = images.data_ptr()  # raises RuntimeError if they are not contiguous
    except RuntimeError:
        return np.array([images[i].data_ptr() for i in range(len(images))], dtype=np.int64)
    sizes_bytes_N: NDArray[np.int64] = shapes_N3.prod(axis=1)
    ends_N: NDArray[np.int64] = first + sizes_bytes_N.cumsum()
    return ends_N - sizes_bytes_N
