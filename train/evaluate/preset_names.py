"""A preset belongs to a protocol: one message for all that name another."""

from collections.abc import Collection

from accelssl.errors import UserError


def refuse_unknown_preset(preset: str, protocol: str, known: Collection[str]) -> None:
    """UserError, with the presets of this protocol, unless `preset` is one of them."""
    if preset not in known:
        raise UserError(
            f"The preset {preset!r} of --protocol {protocol} is not known.",
            f"Use --preset {' or '.join(known)}.",
        )
