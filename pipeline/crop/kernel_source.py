"""The crop's CUDA source, what it is compiled with, and the machine code."""

from accelssl.pipeline.compress import nvrtc

SOURCES = ("crop.cu", "ptx.cuh", "axis.cuh", "down.cuh", "across.cuh", "huge.cuh")
THREADS = 128
# Of four bytes of a row of the image, for each thread: what it does once a row is then little.
_PIECES = 2
# Blocks that a multiprocessor is to hold at a time: as many as its shared memory has room for.
BLOCKS = 4
_SLOTS, _PLAN_BYTES = 12, 48


def shared_bytes(threads: int = THREADS) -> int:
    """Shared memory of a block: the plan of a tile and the ring of rows of floats."""
    return _PLAN_BYTES + 4 * _SLOTS * 4 * _PIECES * threads


def defines(threads: int = THREADS) -> tuple[str, ...]:
    """What the compiler is told; threads of a block, a power of two from 32 on."""
    return (
        f"-DTHREADS={threads}",
        f"-DPIECES={_PIECES}",
        f"-DBLOCKS={BLOCKS}",
        f"-DSHARED_BYTES={shared_bytes(threads)}",
    )


def sources() -> dict[str, str]:
    """The text of each of SOURCES."""
    return {name: nvrtc.source("accelssl.pipeline.crop", name) for name in SOURCES}


def machine_code(architecture: str) -> bytes:
    """The kernel `crop` for an architecture such as "sm_90", from the disk cache if it is there.

    Raises CompilationFailed.
    """
    return nvrtc.code(sources(), _options, architecture)


def _options(architecture: str) -> tuple[str, ...]:
    return (f"--gpu-architecture={architecture}", "--std=c++17", "--ftz=true", *defines())
