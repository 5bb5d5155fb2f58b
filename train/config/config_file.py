"""Reading and writing of RUN/config.json, the configuration of a run."""

import json
import math
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from accelssl.errors import UserError
from accelssl.json_text import parsed
from accelssl.train.config import auto
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.cost import Convention
from accelssl.train.config.schedule import from_json


def read_config(path: Path, or_else: str = "") -> TrainConfig:
    """Read the config.json of a run. Raise UserError if the file is missing or invalid.

    or_else: a second remedy if the file is missing.
    """
    if not path.is_file():
        others = f", or {or_else}" if or_else else ""
        raise UserError(
            f"{path.parent} holds no run: there is no {path.name} in it."
            if path.parent.is_dir()
            else f"There is no folder {path.parent}.",
            f"Name the folder that accelssl train wrote with --out{others}.",
        )
    try:
        fields = parsed(path.read_text())
        is_auto = "auto" in fields and fields["auto"] is not None
        fields["auto"] = auto.from_json(fields["auto"]) if is_auto else None
        fields["schedule"] = auto.BEFORE if is_auto else from_json(fields["schedule"])
        fields["convention"] = Convention(fields["convention"])
        refuse_other_types(path, fields)
        fields["keep_at"] = tuple(fields.get("keep_at", ()))
        return TrainConfig(**fields)
    except (OSError, ValueError, TypeError, KeyError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"{path} is not the configuration of a run ({reason}).",
            "Put back what accelssl train wrote, or start another run with another --out.",
        ) from None


def config_text(config: TrainConfig) -> str:
    """Return the text of config.json, which read_config reads."""
    return json.dumps(config.to_json(), indent=1)


_CALLED = {int: "a whole number", float: "a finite number", str: "a text", bool: "true or false"}


def refuse_other_types(path: Path, fields: dict[str, Any]) -> None:
    """Raise UserError for a field with a wrong type. The checks of TrainConfig rely on types."""
    for name, hint in get_type_hints(TrainConfig).items():
        if name in fields and not _is_of(fields[name], hint):
            raise UserError(
                f"{name} is {json.dumps(fields[name])} in {path}: it must be {_called(hint)}.",
                "Set it back to what accelssl train wrote.",
            )


def _is_of(value: Any, hint: Any) -> bool:
    """Return True if a value read from JSON matches a type hint."""
    if isinstance(hint, UnionType):
        return any(_is_of(value, kind) for kind in get_args(hint))
    if get_origin(hint) is tuple:
        return isinstance(value, list) and all(_is_of(part, get_args(hint)[0]) for part in value)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, hint)


def _called(hint: Any) -> str:
    if isinstance(hint, UnionType):
        kinds = [_CALLED[kind] for kind in get_args(hint) if kind in _CALLED]
        return " or ".join([*kinds, "null"])
    return "a list of numbers" if get_origin(hint) is tuple else _CALLED[hint]
