"""Run the crop's CUDA source as C++, with one CPU thread per GPU thread, and check its crops."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from accelssl.pipeline.crop import kernel_source
from accelssl.pipeline.crop.definition import resized_image

HERE = Path(__file__).parent
Image = NDArray[np.uint8]

# What cuda_on_cpu.h lacks. A warp's threads meet at a barrier of their own to exchange values.
PREAMBLE = """
#include "{header}"
#include <deque>
static Index blockDim{{0}};
static pthread_barrier_t warp_barriers[THREADS / 32];
static unsigned exchanged[THREADS];
inline unsigned __float_as_uint(float value) {{
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}}
inline unsigned __shfl_down_sync(unsigned, unsigned value, int by) {{
    const unsigned t = threadIdx.x;
    exchanged[t] = value;
    pthread_barrier_wait(&warp_barriers[t / 32]);
    const unsigned got = t % 32 + by < 32 ? exchanged[t + by] : value;
    pthread_barrier_wait(&warp_barriers[t / 32]);
    return got;
}}
#define __noinline__
// Bytes that may be touched: 16 that hold a byte of the image, and of these none behind its last.
static unsigned long long lowest, highest;
struct Copy {{ unsigned char* to; const unsigned char* from; int bytes; }};
static thread_local std::deque<std::vector<Copy>> groups(1);
inline void carry_out(const Copy& copy) {{
    memcpy(copy.to, copy.from, copy.bytes);
    memset(copy.to + copy.bytes, 0, 16 - copy.bytes);
}}
inline void copy_16(unsigned char* to, const unsigned char* from, int bytes) {{
    const unsigned long long at = (unsigned long long)from;
    const bool is_needed = at + 15 >= lowest && at + bytes - 1 <= highest;
    if (at % 16 || (unsigned long long)to % 16 || bytes < 1 || bytes > 16 || !is_needed) {{
        fprintf(stderr, "%d bytes at %llx: need %llx to %llx\\n", bytes, at, lowest, highest);
        abort();
    }}
    groups.back().push_back(Copy{{to, from, bytes}});
    if (!LATE) carry_out(groups.back().back());
}}
inline void end_of_group() {{ groups.emplace_back(); }}
template <int LATER>
inline void wait_for_groups() {{
    for (; groups.size() > LATER + 1; groups.pop_front()) {{
        if (LATE) for (const Copy& copy : groups.front()) carry_out(copy);
    }}
}}
inline void store_global_word(unsigned char* at, unsigned word) {{
    if ((unsigned long long)at % 4) abort();
    memcpy(at, &word, 4);
}}
inline void store_global_byte(unsigned char* at, unsigned byte) {{ *at = (unsigned char)byte; }}
"""
ENTRY = """
extern "C" void run(const i64* ptrs, const int* sizes, const float* windows, u8* crops, int n,
                    int views, int size, int strip, int threads) {
    blockDim.x = threads;
    for (pthread_barrier_t& barrier : warp_barriers) pthread_barrier_init(&barrier, nullptr, 32);
    const unsigned strips = (size + strip - 1) / strip;
    for (unsigned i = 0; i < (unsigned)n; ++i) {
        lowest = ptrs[i], highest = ptrs[i] + 3ull * sizes[2 * i] * sizes[2 * i + 1] - 1;
        const unsigned first = i * views * strips;
        launch(views * strips, threads, [=] {
            const unsigned block = blockIdx.x;
            blockIdx.x += first;
            crop(ptrs, sizes, windows, crops, n, views, size, strip);
            blockIdx.x = block;
        });
    }
}
"""


def write_sources(folder: Path) -> dict[str, str]:
    """Write the sources to a folder under their names."""
    texts = kernel_source.sources()
    for name, text in texts.items():
        (folder / name).write_text(text)
    return texts


def built(span: int, is_late: bool, folder: Path) -> ctypes.CDLL:
    """Compile the kernel for tiles that read `span` bytes of a row.

    Copies to shared memory arrive at once, or only when the kernel waits for them.
    """
    code = write_sources(folder)["crop.cu"].replace('#include "ptx.cuh"', "")
    memory = "alignas(16) static u8 shared[SHARED_BYTES];"
    code = code.replace("extern __shared__ __align__(16) u8 shared[];", memory)
    preamble = PREAMBLE.format(header=HERE.parent / "cuda_on_cpu.h")
    (folder / "crop.cpp").write_text(f"{preamble}{code}{ENTRY}")
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-w"]
    command += [
        "-fno-strict-aliasing",
        *kernel_source.defines(span),
        f"-DLATE={int(is_late)}",
        "-o",
        "crop.so",
        "crop.cpp",
    ]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "crop.so"))


def crops_of(
    library: ctypes.CDLL, images: list[Image], windows: NDArray[np.float32], size: int, strip: int
) -> NDArray[np.uint8]:
    """Return crops_VNHWC from windows_VN4, and check that bytes around them stay unchanged."""
    views, n = windows.shape[:2]
    sizes = np.array([image.shape[:2] for image in images], dtype=np.int32)
    ptrs = np.array([image.ctypes.data for image in images], dtype=np.int64)
    bytes_out = views * n * size * size * 3
    memory = np.full(bytes_out + 32, 77, dtype=np.uint8)
    arrays = (ptrs, sizes, windows, memory[16:])
    library.run(
        *(ctypes.c_void_p(a.ctypes.data) for a in arrays),
        n,
        views,
        size,
        strip,
        kernel_source.threads(size),
    )
    assert (memory[:16] == 77).all() and (memory[16 + bytes_out :] == 77).all()
    return memory[16 : 16 + bytes_out].reshape(views, n, size, size, 3)


def noise(height: int, width: int, rng: np.random.Generator, skip: int = 0) -> Image:
    """Return an image of random bytes whose address is `skip` beyond a multiple of 16."""
    count = height * width * 3
    memory = rng.integers(0, 256, count + 32, dtype=np.uint8)
    begin = -memory.ctypes.data % 16 + skip
    return memory[begin : begin + count].reshape(height, width, 3)


def assert_as_defined(
    crops: NDArray[np.uint8],
    images: list[Image],
    windows: NDArray[np.float32],
) -> None:
    """Check that crops are the float64 values rounded, to a few thousandths at the halves."""
    for view, n in np.ndindex(*windows.shape[:2]):
        image, window = torch.from_numpy(images[n]), torch.from_numpy(windows[view, n])
        exact = resized_image(image, window, crops.shape[2], torch.float64).numpy()
        error = np.abs(crops[view, n] - exact).max()
        assert error < 0.5 + 1e-4, (view, n, image.shape, window.tolist(), error)
