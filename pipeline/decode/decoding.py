"""Settings of the image decoder, with their bounds. Imports neither DALI nor torch."""

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
    """Settings of one decoder, or of several that take batches in turn.

    The defaults suit a CPU and one decoder. On a GPU `LoaderOptions.decoding` chooses `threads`,
    `hw_load` and `decoders`. Raises UserError for a value out of bounds.
    """

    threads: int = 2
    """CPU threads, shared by all decoders."""
    prefetch: int = 3
    """Batches that each decoder works ahead."""
    hw_load: float = 0.9
    """Share of images for the GPU's JPEG engines; its multiprocessors decode the rest."""
    preallocated_px: int = 0
    """Side in pixels of an image for which memory is allocated at the start; 0 for none."""
    decoders: int = 1
    """Decoders, which take batches in turn.

    One decoder leaves the GPU's JPEG engines idle while it parses headers and allocates memory; a
    second decoder keeps them busy with another batch. Splitting every batch between decoders would
    not help: both would leave the engines idle at the same time.
    """

    def __post_init__(self) -> None:
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise UserError(
                    f"{name} is {value:g}, out of bounds.", f"Use a value from {least} to {most}."
                )

    @property
    def batches_ahead(self) -> int:
        """Return the largest number of batches that are decoded before the caller asks for them."""
        return self.decoders * self.prefetch
