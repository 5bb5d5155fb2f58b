"""How the decoder works: defaults and bounds, also for what does not load DALI or torch."""

from dataclasses import dataclass

from accelssl.errors import UserError

BOUNDS = {
    "threads": (1, 4096),
    "prefetch": (1, 64),
    "hw_load": (0, 1),
    "preallocated_px": (0, 65_535),
    "decoders": (1, 64),
}


@dataclass(frozen=True)
class Decoding:
    """The defaults are what was measured to be best on 4 and on 16 cores.

    threads: of the processor; prefetch: batches that a decoder works ahead; hw_load: the share of
    images for the GPU's JPEG decoder where it has one, the rest goes to its multiprocessors;
    preallocated_px: side of an image that memory is set aside for at the start, 0 for none;
    decoders: how many take batches in turn and share the threads. One works in phases, headers,
    memory, images, and leaves the GPU's engines idle in the first two; then another, a batch before
    or behind it, keeps them busy. Decoders with a part of every batch each would wait together.
    UserError when one is out of bounds.
    """

    threads: int = 2
    prefetch: int = 3
    hw_load: float = 0.9
    preallocated_px: int = 0
    decoders: int = 1

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UserError(
                    f"{name} {value:g} makes no sense.", f"Use a value from {least} to {most}."
                )

    @property
    def batches_ahead(self) -> int:
        """Batches that are decoded, or being decoded, before they are asked for."""
        return self.decoders * self.prefetch
