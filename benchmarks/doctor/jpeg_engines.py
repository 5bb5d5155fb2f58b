"""Asks nvJPEG for the hardware JPEG decoder of a card (A100, A30, H100, H200, B200 have one)."""

import ctypes

import torch

_HARDWARE, _SUCCESS = 3, 0
_ARCH_MISMATCH, _NOT_SUPPORTED = 7, 9


class NoAnswer(Exception):
    """nvJPEG is missing or failed; the text says which."""


def jpeg_engines(device: torch.device) -> tuple[int, int]:
    """Return (engines, cores of each); (0, 0) for a card without engines. Raise NoAnswer."""
    nvjpeg = _library()
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        torch.empty(1, device=device)  # nvJPEG works in the context that torch has made
        status = nvjpeg.nvjpegCreateEx(_HARDWARE, None, None, 0, ctypes.byref(handle))
        if status in (_ARCH_MISMATCH, _NOT_SUPPORTED):
            return 0, 0
        if status != _SUCCESS:
            raise NoAnswer(f"nvjpegCreateEx returned {status}")
        engines, cores = ctypes.c_uint(), ctypes.c_uint()
        status = nvjpeg.nvjpegGetHardwareDecoderInfo(
            handle, ctypes.byref(engines), ctypes.byref(cores)
        )
        nvjpeg.nvjpegDestroy(handle)
    if status in (_ARCH_MISMATCH, _NOT_SUPPORTED):
        return 0, 0
    if status != _SUCCESS:
        raise NoAnswer(f"nvjpegGetHardwareDecoderInfo returned {status}")
    return engines.value, cores.value


def _library() -> ctypes.CDLL:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib("nvjpeg").abs_path
        return ctypes.CDLL(str(path))
    except Exception as error:  # the finder has many ways to say that it found nothing
        raise NoAnswer(f"nvJPEG cannot be loaded: {error}") from error
