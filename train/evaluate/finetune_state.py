"""The state of a fine-tuning between two steps, written to disk atomically."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.files import whole_file
from accelssl.option_names import option_of
from accelssl.train.checkpoints.checkpoint import refuse_damage

FORMAT = 1
NAME = "checkpoint.pt"

Facts = dict[str, Any]


@dataclass
class FinetuneState:
    """The state after `step` steps. facts: its settings, weights and data, as plain values.

    loss_sum: the losses of the current epoch's steps. history has a line for each finished epoch.
    result is set at the end. ema is empty without a moving average.
    """

    facts: Facts
    step: int = 0
    elapsed_s: float = 0.0
    loss_sum: float = 0.0
    network: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    ema: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None


def save(folder: Path, state: FinetuneState) -> None:
    """Write FOLDER/checkpoint.pt through a temporary file. Raise UserError if writing fails."""
    try:
        with whole_file(folder / NAME) as file:
            torch.save(vars(state) | {"format": FORMAT}, file)
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise UserError(
            f"The fine-tuning's checkpoint could not be written to {folder} ({reason}).",
            "Free space there and give the same command again: it goes on where it was last saved.",
        ) from error


def load(folder: Path, facts: Facts) -> FinetuneState:
    """Return the state in `folder` if it belongs to `facts`, else a new one.

    A finished fine-tuning with other facts is replaced. Raise UserError for an unfinished one with
    other facts, and for a file that is not a checkpoint of fine-tuning.
    """
    path = folder / NAME
    if not path.exists():
        return FinetuneState(facts)
    refuse_damage(path, f"Put back a copy of it, or remove {folder} to begin anew.")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
        if (written_as := found.pop("format")) != FORMAT:
            raise ValueError(f"format {written_as}, not {FORMAT}")
        state = FinetuneState(**found)
    except Exception as error:
        raise UserError(
            f"{path} is not a fine-tuning of this version ({error}).", f"Remove {folder}."
        ) from error
    if state.facts == facts:
        return state
    if state.result is None:
        raise UserError(
            f"{folder} holds an unfinished fine-tuning with {_difference(state.facts, facts)}.",
            f"Give the same options to go on with it, or remove {folder} to begin anew.",
        )
    return FinetuneState(facts)


def _difference(stored: Facts, given: Facts) -> str:
    names = [name for name in stored | given if stored.get(name) != given.get(name)]
    shown = [
        f"{option_of(name, 'evaluate')} {_short(stored.get(name))}, not {_short(given.get(name))}"
        for name in names
    ]
    return "; ".join(shown[:3])


def _short(value: object) -> str:
    return str(value)[:24]
