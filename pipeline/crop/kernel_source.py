"""The crop's CUDA source, what it is compiled with, and the machine code."""

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
# Blocks of THREADS that a multiprocessor is to hold at a time: registers are shared out by that.
BLOCKS = 4
# Bytes of a row of the image that a tile sees, at most: 512 pixels.
SPAN = 1536
# Rows in the ring, and its bytes for each beyond SPAN: as rows.cuh has them.
_ROWS, _BEYOND = 16, 32 + 16


def threads(size: int) -> int:
    """Of a block that makes crops of this side, in whole warps: as many as a
    tile has columns, where SPAN does not make it narrower."""
    tiles = -(-size // THREADS)
    return 32 * -(-size // (32 * tiles))


def shared_bytes(span: int = SPAN) -> int:
    """Shared memory of a block: the ring of rows of the image, or what huge.cuh needs."""
    return max(_ROWS * (span + _BEYOND), 32 * THREADS)


def defines(span: int = SPAN) -> tuple[str, ...]:
    """What the compiler is told."""
    return (
        f"-DTHREADS={THREADS}",
        f"-DBLOCKS={BLOCKS}",
        f"-DSPAN={span}",
        f"-DSHARED_BYTES={shared_bytes(span)}",
    )


def sources() -> dict[str, str]:
    """The text of each of SOURCES."""
    return {name: nvrtc.source("accelssl.pipeline.crop", name) for name in SOURCES}


def machine_code(architecture: str) -> bytes:
    """The kernel `crop` for an architecture such as "sm_90", from the disk cache if it is there.

    Raises CompilationFailed.
    """
    return nvrtc.machine_code(sources(), _options, architecture)


def _options(architecture: str) -> tuple[str, ...]:
    return (f"--gpu-architecture={architecture}", "--std=c++17", "--ftz=true", *defines())
