"""Work queues between a process and its GPU: as many as the card has, before CUDA starts.

Streams are software; what they hold reaches the card through hardware queues, in order. A process
gets 8 of them unless CUDA_DEVICE_MAX_CONNECTIONS asks for more, up to 32. DALI has many streams,
and one that waits for the JPEG decoder holds up every stream that shares its queue: a training
step waited 19 ms with 8 queues, 2.8 ms with 32 (ViT-B, 512 pairs, one H200).

CUDA reads the variable once, when it starts. The command line sets it before it loads torch. In a
script of your own, set it in the shell, or call

    from accelssl.pipeline.decode.hardware_queues import set_hardware_queues
    set_hardware_queues()

before anything touches the GPU; importing torch does not, torch.cuda.is_available() may.
A Loader on a GPU that comes too late for it warns, once.
"""

import ctypes
import os
import sys
import warnings

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
QUEUES = 32
"""The most that CUDA takes."""

_LIBRARY = "libcuda.so.1"
_CUDA_ERROR_NOT_INITIALIZED = 3
REMEDY = (
    f"Set {VARIABLE}={QUEUES} in the shell, or call set_hardware_queues() of "
    "accelssl.pipeline.decode.hardware_queues before anything uses the GPU."
)
_what_was_seen = {"unset after the start": False, "told": False}


def set_hardware_queues() -> None:
    """Ask for 32 queues, unless the environment says a number already. Does not load torch."""
    _look()
    os.environ.setdefault(VARIABLE, str(QUEUES))


def cuda_has_started() -> bool:
    """Whether anything in this process (torch, DALI, any other library) has started CUDA.

    Asks the driver itself, and neither loads nor starts it. False where that cannot be asked
    (outside Linux).
    """
    only_if_loaded = getattr(os, "RTLD_NOLOAD", None)
    if only_if_loaded is None:
        return False
    try:
        driver = ctypes.CDLL(_LIBRARY, mode=only_if_loaded | os.RTLD_NOW)
    except OSError:
        return False
    # Every function of the driver answers so before cuInit.
    answer: int = driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))
    return answer != _CUDA_ERROR_NOT_INITIALIZED


def problem() -> str | None:
    """What is wrong with the number of queues of this process, in a sentence, or None.

    A number below 32, a text that is none, or a variable that was not set when CUDA started. A
    variable unset before that is no problem yet. Sets nothing.
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
    """The problem and its remedy, or None."""
    found = problem()
    return None if found is None else f"{found} {REMEDY}"


def warn_once() -> None:
    """For a library user's process that is about to use a GPU: a RuntimeWarning if it is too late.

    Where it is not, and the variable is unset, it is set. At most one warning a process, and none
    after tell_once has told.
    """
    set_hardware_queues()
    if text := _untold():
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def tell_once() -> None:
    """The same for the command line: a line on stderr."""
    set_hardware_queues()
    if text := _untold():
        print(f"warning: {text}", file=sys.stderr)


def _untold() -> str | None:
    text = None if _what_was_seen["told"] else complaint()
    _what_was_seen["told"] |= text is not None
    return text


def _look() -> None:
    """Remembers what a later look cannot find out: that CUDA ran while the variable was unset."""
    if VARIABLE not in os.environ and cuda_has_started():
        _what_was_seen["unset after the start"] = True


# A script may set it between this import and its first batch: too late if CUDA runs already.
_look()
