"""Number of hardware queues between this process and its GPU: set to 32 before CUDA starts.

CUDA streams share hardware queues, which run their work in order. A process has 8 queues unless
CUDA_DEVICE_MAX_CONNECTIONS asks for more, up to 32. DALI has many streams, and a stream that waits
for the JPEG decoder blocks every stream in the same queue: a training step waited 19 ms with 8
queues and 2.8 ms with 32 (ViT-B, 512 pairs, one H200).

CUDA reads the variable once, when it starts. The command line sets it before it loads torch. In a
Python script, set the variable in the shell, or call

    from accelssl.pipeline.decode.hardware_queues import set_hardware_queues
    set_hardware_queues()

before any code uses the GPU. Importing torch does not start CUDA; torch.cuda.is_available() may.
A Loader that is created too late to set the variable warns once.
"""

import ctypes
import os
import sys
import warnings

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
QUEUES = 32
"""Largest number of queues that CUDA supports."""

_LIBRARY = "libcuda.so.1"
_CUDA_ERROR_NOT_INITIALIZED = 3
REMEDY = (
    f"Set {VARIABLE}={QUEUES} in the shell, or call set_hardware_queues() of "
    "accelssl.pipeline.decode.hardware_queues before anything uses the GPU."
)
_what_was_seen = {"unset after the start": False, "told": False}


def set_hardware_queues() -> None:
    """Set CUDA_DEVICE_MAX_CONNECTIONS to 32 unless it has a value. Does not load torch."""
    _look()
    os.environ.setdefault(VARIABLE, str(QUEUES))


def cuda_has_started() -> bool:
    """Return True if a library of this process (torch, DALI or another) has started CUDA.

    Asks the driver, but neither loads nor starts the driver. Returns False outside Linux.
    """
    only_if_loaded = getattr(os, "RTLD_NOLOAD", None)
    if only_if_loaded is None:
        return False
    try:
        driver = ctypes.CDLL(_LIBRARY, mode=only_if_loaded | os.RTLD_NOW)
    except OSError:
        return False
    # Before cuInit every driver function returns this error.
    answer: int = driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    return answer != _CUDA_ERROR_NOT_INITIALIZED


def problem() -> str | None:
    """Return a sentence about a wrong number of queues in this process, or None.

    Wrong are a number below 32, a text that is no number, and a variable that was unset when CUDA
    started. An unset variable before CUDA starts is no problem. Sets nothing.
    """
    _look()
    text = os.environ.get(VARIABLE)
    if _what_was_seen["unset after the start"]:
        return (
            f"{VARIABLE} was not set when CUDA started, so this process has 8 hardware queues and "
            "decoding and training wait for each other."
        )
    if text is None:
        return None
    number = int(text) if text.strip().isascii() and text.strip().isdigit() else 0
    if not 1 <= number <= QUEUES:
        return f"{VARIABLE} is {text!r}, not a number from 1 to {QUEUES}."
    if number < QUEUES:
        return (
            f"{VARIABLE} is {number}: with fewer than {QUEUES} hardware queues decoding and "
            "training wait for each other."
        )
    return None


def complaint() -> str | None:
    """Return the problem and its remedy, or None."""
    found = problem()
    return None if found is None else f"{found} {REMEDY}"


def warn_once() -> None:
    """Set the variable, or emit a RuntimeWarning if CUDA has already started with fewer queues.

    For library users. Warns at most once per process, and never after tell_once has printed.
    """
    set_hardware_queues()
    if text := _untold():
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def tell_once() -> None:
    """Do the same as warn_once for the command line, with a line on stderr."""
    set_hardware_queues()
    if text := _untold():
        print(f"warning: {text}", file=sys.stderr)


def _untold() -> str | None:
    text = None if _what_was_seen["told"] else complaint()
    _what_was_seen["told"] |= text is not None
    return text


def _look() -> None:
    """Remember that CUDA ran while the variable was unset; a later call could not find out."""
    if VARIABLE not in os.environ and cuda_has_started():
        _what_was_seen["unset after the start"] = True


# If CUDA runs at this import, it is too late for a script to set the variable.
_look()
