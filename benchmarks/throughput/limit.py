"""Limits of a live run: the step, its launches, the decoder, the copies or the op."""

from dataclasses import dataclass
from typing import Literal

Limit = Literal["step", "launch", "decoder", "copy", "op"]
ENOUGH, LAUNCH_BOUND = 0.97, 0.9
MEANINGS: dict[Limit, str] = {
    "step": "training itself",
    "launch": "the host, which launches kernels no faster than they run",
    "decoder": "decoding: more threads, or smaller pictures (shard-imagenet --short-side)",
    "copy": "moving files to the GPU: smaller pictures (shard-imagenet --short-side)",
    "op": "augmenting crops and making tokens of them on this device",
}


@dataclass(frozen=True)
class Parts:
    """Seconds a batch takes each part alone; None where it was not measured.

    launch_s: until a step is under way on an idle GPU. loader_s: Loader.next, tokens and all.
    copy_s: the encoded images to the GPU. op_s: the tokens of all views.
    """

    step_s: float
    live_s: float
    launch_s: float | None = None
    loader_s: float | None = None
    decoder_s: float | None = None
    copy_s: float | None = None
    op_s: float | None = None


def limit(parts: Parts) -> Limit:
    """The part to make faster first.

    1. "launch": the host needs LAUNCH_BOUND of the step's time to launch it. Then the device waits
       for the host, in the synthetic run as in the live one, and a faster kernel changes nothing.
    2. "step": the live run reaches ENOUGH of the synthetic rate. What data costs is less than what
       runs differ by.
    3. The loader alone is no faster than the live run (within the same 3%): it is the bottleneck.
       Its parts work side by side, so its longest one sets the pace: op, copy or the rest of the
       decoder (whose time alone includes the copy).
    4. Else the loader keeps up and yet delays the step, by sharing the device with it. A part that
       alone takes half of the delay or more can explain most of it: the op first, since its whole
       time is taken from the same processors, then the decoder if it is no faster than the step
       and does not mostly copy, then the copies, then the kernels about the decoder.
       Where none can, as on a CPU that has too few cores for all of them, it is the step itself.
    """
    if parts.launch_s is not None and parts.launch_s >= LAUNCH_BOUND * parts.step_s:
        return "launch"
    if parts.step_s >= ENOUGH * parts.live_s:
        return "step"
    op_s, copy_s = parts.op_s or 0.0, parts.copy_s or 0.0
    if parts.loader_s is not None and parts.loader_s >= ENOUGH * parts.live_s:
        decoder_s = (parts.decoder_s or parts.loader_s) - copy_s
        longest: list[tuple[float, Limit]] = [
            (decoder_s, "decoder"),
            (copy_s, "copy"),
            (op_s, "op"),
        ]
        return max(longest, key=lambda part: part[0])[1]
    delay_s = parts.live_s - parts.step_s
    if op_s >= delay_s / 2:
        return "op"
    if (parts.decoder_s or 0.0) >= max(parts.step_s, 2 * copy_s):
        return "decoder"
    if copy_s >= delay_s / 2:
        return "copy"
    return "step" if (parts.decoder_s or delay_s) < delay_s / 2 else "decoder"
