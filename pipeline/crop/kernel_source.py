"""CUDA source of the crop: compiler options and machine code."""

from accelssl.pipeline.cuda import nvrtc

SOURCES = (
    "crop.cu",
    "ptx.cuh",
    "axis.cuh",
    "rows.cuh",
    "across.cuh",
    "pixels.cuh",
    "down.cuh",
    "huge.cuh",
)
THREADS = 256
# Blocks of THREADS per multiprocessor, a bound on the registers of a thread.
BLOCKS = 4
# Most bytes that a tile reads of a row of the image: 512 pixels.
SPAN = 1536
# Rows of the ring buffer, and its bytes per row beyond SPAN; rows.cuh has the same values.
_ROWS, _BEYOND = 16, 32 + 16


def threads(size: int) -> int:
    """Return the threads of a block for crops of this side, in whole warps.

    A thread computes one column of a tile. SPAN may narrow a tile; then some threads are idle.
    """
    tiles = -(-size // THREADS)
    return 32 * -(-size // (32 * tiles))


def shared_bytes(span: int = SPAN) -> int:
    """Return the bytes of shared memory of a block: a ring of rows, or the need of huge.cuh."""
    return max(_ROWS * (span + _BEYOND), 32 * THREADS)


def defines(span: int = SPAN) -> tuple[str, ...]:
    """Return the compiler's -D options."""
    return (
        f"-DTHREADS={THREADS}",
        f"-DBLOCKS={BLOCKS}",
        f"-DSPAN={span}",
        f"-DSHARED_BYTES={shared_bytes(span)}",
    )


def sources() -> dict[str, str]:
    """Return the text of each of SOURCES by name."""
    return {name: nvrtc.source("accelssl.pipeline.crop", name) for name in SOURCES}


def machine_code(architecture: str) -> bytes:
    """Return the kernel `crop` for an architecture such as "sm_90", as nvrtc.machine_code does."""
    return nvrtc.machine_code(sources(), _options, architecture)


def _options(architecture: str) -> tuple[str, ...]:
    return (f"--gpu-architecture={architecture}", "--std=c++17", "--ftz=true", *defines())
