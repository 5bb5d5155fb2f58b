"""The presets are the originals', and what makes no sense is refused."""

from typing import Any

import pytest

from accelssl.errors import UserError
from accelssl.train.evaluate.finetune_settings import PRESETS, deit, finetune_settings, mae


def test_the_presets_are_the_originals() -> None:
    shared = {
        "batch": 1024,
        "warmup_epochs": 5,
        "weight_decay": 0.05,
        "drop_path": 0.1,
        "rand_augment": "rand-m9-mstd0.5-inc1",
        "mixup": 0.8,
        "cutmix": 1.0,
        "switch": 0.5,
        "smoothing": 0.1,
        "erase": 0.25,
    }
    assert shared.items() <= deit().to_json().items() and shared.items() <= mae().to_json().items()
    assert (deit().epochs, deit().min_lr, deit().start_lr) == (150, 1e-5, 1e-6)
    assert (deit().repeats, deit().ema_decay, deit().pool) == (3, 0.99996, "token")
    assert deit().peak_lr == pytest.approx(5e-4 * 1024 / 512)
    assert (mae().epochs, mae().min_lr, mae().start_lr) == (100, 1e-6, 0)
    assert (mae().layer_decay, mae().repeats, mae().ema_decay, mae().pool) == (0.65, 1, 0, "avg")
    assert mae().peak_lr == pytest.approx(5e-4 * 1024 / 256)
    assert all(PRESETS[name]().preset == name for name in PRESETS)


def test_options_that_were_given_replace_the_presets() -> None:
    settings = finetune_settings("mae", epochs=30, batch=64, base_lr=None)
    assert (settings.epochs, settings.batch, settings.base_lr) == (30, 64, 5e-4)
    assert settings.warmup_epochs == 5 and settings.peak_lr == pytest.approx(5e-4 / 4)


@pytest.mark.parametrize(("epochs", "warmup"), [(1, 0), (4, 0), (5, 1), (24, 4), (150, 5)])
def test_a_shorter_fine_tuning_warms_up_for_a_fifth_of_it_at_most(epochs: int, warmup: int) -> None:
    assert finetune_settings("deit", epochs=epochs).warmup_epochs == warmup


@pytest.mark.parametrize("batch", [2, 6, 64, 128, 130, 254, 384, 1000, 1024, 2 * 131])
def test_a_batch_falls_into_equal_even_pieces(batch: int) -> None:
    settings = finetune_settings("deit", batch=batch)
    assert settings.at_once * settings.pieces == batch
    assert settings.at_once % 2 == 0 and settings.at_once <= 128
    larger = range(settings.at_once + 2, 129, 2)
    assert not any(batch % size == 0 for size in larger)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"preset": "beit"}, "preset 'beit'"),
        ({"epochs": 0}, "--epochs 0"),
        ({"epochs": 3, "warmup_epochs": 3}, "warmup_epochs 3"),
        ({"batch": 0}, "--batch 0"),
        ({"batch": 7}, "--batch 7"),
        ({"base_lr": -1.0}, "--lr -1"),
        ({"base_lr": float("nan")}, "--lr nan"),
        ({"weight_decay": -0.1}, r"weight_decay -0\.1"),
        ({"layer_decay": 1.5}, r"layer_decay 1\.5"),
        ({"drop_path": 1.0}, "drop_path 1"),
        ({"ema_decay": 1.0}, "ema_decay 1"),
        ({"repeats": 0}, "repeats 0"),
        ({"seed": -1}, "seed -1"),
        ({"pool": "max"}, "'max'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        finetune_settings(**options)
