"""The settings that a result was found with: which results are alike, and what they changed.

No torch.
"""

import math
from typing import Any

from accelssl.train.evaluate import finetune_settings, linear_presets

Result = dict[str, Any]
_NAMES = (
    "protocol",
    "digest",
    "preset",
    "crops",
    "resets_last_norm",
    "epochs",
    "batch",
    "peak_lr",
)


def settings_of(result: Result) -> dict[str, Any]:
    """All that its figures depend on besides the weights; None for what it does not tell."""
    return {name: result.get(name) for name in _NAMES} | {"rates": _rates(result)}


def changes(result: Result) -> list[str]:
    """In words, what is not as its preset has it; crops aside, which every linear result names.

    Empty for a protocol without presets, and for a preset that is not known here.
    """
    preset = result.get("preset")
    if result.get("protocol") == "linear" and preset in linear_presets.PRESETS:
        return _linear_changes(result, linear_presets.linear_preset(preset))
    if result.get("protocol") == "finetune" and preset in finetune_settings.PRESETS:
        return _finetune_changes(result, finetune_settings.PRESETS[preset]())
    return []


def _linear_changes(result: Result, own: linear_presets.LinearSettings) -> list[str]:
    # A set smaller than a batch is one batch.
    texts = _schedule(result, own.epochs, min(own.batch, result.get("train", own.batch)))
    rates = _rates(result)
    if rates and rates != sorted(own.rates):
        name = "rates" if len(rates) > 1 else "rate"
        texts.append(f"{name} {', '.join(f'{rate:g}' for rate in rates)}")
    return [*texts, "last norm reset"] if result.get("resets_last_norm") else texts


def _finetune_changes(result: Result, own: finetune_settings.FinetuneSettings) -> list[str]:
    texts = _schedule(result, own.epochs, own.batch)
    if {"peak_lr", "batch"} <= result.keys():
        rate = result["peak_lr"] * 256 / result["batch"]
        if not math.isclose(rate, own.base_lr):
            texts.append(f"rate {rate:g}")
    return texts


def _schedule(result: Result, epochs: int, batch: int) -> list[str]:
    texts = []
    if result.get("epochs", epochs) != epochs:
        texts.append("1 epoch" if result["epochs"] == 1 else f"{result['epochs']:,} epochs")
    if result.get("batch", batch) != batch:
        texts.append(f"batch {result['batch']:,}")
    return texts


def _rates(result: Result) -> list[float] | None:
    """Of a linear probe, ascending: the order they were given in is no setting."""
    trained = result.get("trained")
    found = trained.get("rates") if isinstance(trained, dict) else None
    return None if found is None else sorted(each["rate"] for each in found)
