"""The settings of a result: which results are comparable, and how they differ from their preset.

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
    """Return everything that the figures depend on besides the weights; None for settings not
    recorded."""
    return {name: result.get(name) for name in _NAMES} | {"rates": _rates(result)}


def changes(result: Result) -> list[str]:
    """Describe the differences from the preset, without crops, which every linear result names.

    Empty for a protocol without presets, and for an unknown preset.
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
    """Return the rates of a linear probe in ascending order; the given order does not matter."""
    trained = result.get("trained")
    found = trained.get("rates") if isinstance(trained, dict) else None
    return None if found is None else sorted(each["rate"] for each in found)
