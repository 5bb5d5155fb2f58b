"""Compile CUDA sources at run time with NVRTC, and cache the machine code on disk.

NVRTC is a part of the CUDA libraries that PyTorch brings. It needs neither a GPU nor a compiler on
the machine: it makes the machine code of any architecture anywhere.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

_DIGEST_BYTES = 32


class CompilationFailed(Exception):
    """Error of a kernel that cannot be compiled or loaded; the message names the cause."""


def machine_code(
    sources: dict[str, str], options: Callable[[str], tuple[str, ...]], architecture: str
) -> bytes:
    """Compile the first of `sources` for an architecture such as "sm_90", or read the disk cache.

    The first source may include the others by name. `options` returns the compiler's options for
    an architecture that NVRTC supports. If NVRTC does not support `architecture` yet, the result
    is PTX for the nearest older one, which the driver compiles. Any number of processes may call
    this at once. Raises CompilationFailed.
    """
    kept = cached(sources, options, architecture)
    if kept is not None:
        return kept
    nvrtc = _library()
    flags = options(_known(nvrtc, architecture))
    made = _compiled(nvrtc, sources, flags)
    # Without a cache folder the run compiles at each start, which takes a second.
    with suppress(OSError, RuntimeError):
        _write(_cache_folder() / _key(sources, flags), hashlib.sha256(made).digest() + made)
    return made


def cached(
    sources: dict[str, str], options: Callable[[str], tuple[str, ...]], architecture: str
) -> bytes | None:
    """Return the machine code from the disk cache, or None. The arguments are machine_code's."""
    flags = options(_known(_library(), architecture))
    with suppress(OSError, RuntimeError):
        kept = (_cache_folder() / _key(sources, flags)).read_bytes()
        if hashlib.sha256(kept[_DIGEST_BYTES:]).digest() == kept[:_DIGEST_BYTES]:
            return kept[_DIGEST_BYTES:]
    return None


def _key(sources: dict[str, str], flags: tuple[str, ...]) -> str:
    content = sorted(sources.items()), flags, _version(_library())
    return hashlib.sha256(repr(content).encode()).hexdigest()


def source(package: str, name: str) -> str:
    """Return the text of a source file in a package."""
    return (files(package) / name).read_text()


@cache
def _library() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:  # the bindings raise many types of error if the library is missing
        raise CompilationFailed(f"NVRTC cannot be loaded: {error}") from error
    return nvrtc


def _version(nvrtc: Any) -> tuple[int, int]:
    _, major, minor = nvrtc.nvrtcVersion()
    return int(major), int(minor)


def _known(nvrtc: Any, architecture: str) -> str:
    error, known = nvrtc.nvrtcGetSupportedArchs()
    _check(nvrtc, error, "")
    wanted = int(architecture.removeprefix("sm_"))
    older = [arch for arch in known if arch <= wanted]
    if not older:
        raise CompilationFailed(f"NVRTC compiles for sm_{min(known)} and later, not {architecture}")
    return architecture if wanted in known else f"compute_{max(older)}"


def _compiled(nvrtc: Any, sources: dict[str, str], options: tuple[str, ...]) -> bytes:
    main, *_ = sources
    headers = {name: text for name, text in sources.items() if name != main}
    error, program = nvrtc.nvrtcCreateProgram(
        sources[main].encode(),
        main.encode(),
        len(headers),
        [text.encode() for text in headers.values()],
        [name.encode() for name in headers],
    )
    _check(nvrtc, error, "")
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        _check(nvrtc, error, log.decode(errors="replace").strip("\0 \n"))
    is_ptx = "--gpu-architecture=compute" in options[0]
    get_size = nvrtc.nvrtcGetPTXSize if is_ptx else nvrtc.nvrtcGetCUBINSize
    get_code = nvrtc.nvrtcGetPTX if is_ptx else nvrtc.nvrtcGetCUBIN
    _, size = get_size(program)
    code = bytes(size)  # NVRTC writes into it
    (error,) = get_code(program, code)
    _check(nvrtc, error, "")
    nvrtc.nvrtcDestroyProgram(program)
    return code


def _check(nvrtc: Any, error: Any, log: str) -> None:
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompilationFailed(f"NVRTC {'.'.join(map(str, _version(nvrtc)))}: {error.name}\n{log}")


def _cache_folder() -> Path:
    """Return the folder of the disk cache. Raise RuntimeError for a user without a home."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "accelssl" / "kernels"


def _write(path: Path, data: bytes) -> None:
    """Write the file atomically; several processes may write it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    try:
        Path(file.name).replace(path)
    except OSError:
        Path(file.name).unlink()
        raise
