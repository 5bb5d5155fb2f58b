"""The command `accelssl evaluate`: from options to the printed result."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from accelssl.errors import UserError
from accelssl.option_names import option_of
from accelssl.train.device import pick_device
from accelssl.train.evaluate.block_features import probe_features, reset_last_norm
from accelssl.train.evaluate.features import Extract, pixel_features
from accelssl.train.evaluate.linear import linear_scores
from accelssl.train.evaluate.linear_presets import LinearSettings, linear_preset, parse_rates
from accelssl.train.evaluate.neighbours import neighbours_of
from accelssl.train.evaluate.result_settings import Result
from accelssl.train.evaluate.results import NAME as EVALUATION
from accelssl.train.evaluate.results import NEAREST
from accelssl.train.evaluate.subject import Subject, open_subject
from accelssl.train.evaluate.tables import score_table
from accelssl.train.ranks.distributed import device_of, joined, read_ranks
from accelssl.train.report.report import write_report

PROTOCOLS = ("nn", "linear", "finetune")
# The protocols of each option; other options apply to all protocols.
_OPTIONS_OF = {
    "preset": ("linear", "finetune"),
    "normalises": ("linear",),
    "rates": ("linear", "finetune"),
    "crops": ("linear",),
    "epochs": ("linear", "finetune"),
    "batch": ("linear", "finetune"),
    "resets_last_norm": ("linear",),
    "compares": ("nn", "linear"),
}


@dataclass(frozen=True)
class EvaluateOptions:
    """Options of an evaluation; None takes the protocol's default.

    rates: text; a linear probe takes several. normalises: a BatchNorm before the head (preset mae).
    compares: False leaves out the network before training.
    """

    preset: str | None = None
    normalises: bool | None = None
    rates: str | None = None
    crops: str | None = None
    epochs: int | None = None
    batch: int | None = None
    resets_last_norm: bool | None = None
    compares: bool | None = None


def evaluate_command(
    run: Path | None,
    weights: str | None,
    model: str | None,
    data: str | None,
    protocol: str,
    options: EvaluateOptions,
    device: str,
    as_json: bool,
) -> str:
    """Evaluate a run or weights, and return a table or one line of JSON.

    An evaluation of a run also renews its report. Ranks other than the first return an empty text.
    """
    _refuse(protocol, options)
    place, compares = pick_device(device), options.compares is not False

    def subject(place: torch.device) -> Subject:
        with_untrained = compares and protocol != "finetune"
        return open_subject(run, weights, model, data, place, with_untrained=with_untrained)

    if protocol == "nn":
        result = evaluate_neighbours(subject(place), show=not as_json)
    elif protocol == "linear":
        result = evaluate_linear(subject(place), options, show=not as_json)
    else:
        result = _finetuned(subject, options, place, show=not as_json)
    if not result:
        return ""
    table = score_table(result)
    if run is not None:
        table += f"\nkept in {run / EVALUATION}, shown in {write_report(run)}"
    return json.dumps(result) if as_json else table


def evaluate_run(run: Path, data: str | None, device: torch.device, show: bool = True) -> Result:
    """Return nn1 and knn20 of the run's last checkpoint, its untrained network and raw pixels.

    The bank is the train split, the queries are the val split. The result is also kept in
    RUN/evaluation.json. Raise UserError when there is no run, checkpoint or val split.
    """
    return evaluate_neighbours(open_subject(run, None, None, data, device), show)


def evaluate_neighbours(subject: Subject, show: bool = True) -> Result:
    """Return nn1 and knn20 of a subject, its untrained network and raw pixels, and keep them."""
    shards = subject.shards
    extracts: dict[str, Extract] = {**subject.networks, "pixels": pixel_features}
    scores = neighbours_of(shards, extracts, subject.options, show)
    sizes = {"bank": len(shards.split("train")), "queries": len(shards.split("val"))}
    return subject.keep(NEAREST, scores | sizes)


def evaluate_linear(subject: Subject, options: EvaluateOptions, show: bool = True) -> Result:
    """Return the linear accuracy of a subject and keep it in RUN/evaluation.json."""
    settings = _linear_settings(options, subject.trained.width)
    if settings.resets_last_norm:
        reset_last_norm(subject.trained)
    extracts = {
        name: probe_features(network, settings) for name, network in subject.networks.items()
    }
    scores = linear_scores(subject.shards, extracts, settings, subject.options, show)
    return subject.keep("linear", scores)


def _linear_settings(options: EvaluateOptions, width: int) -> LinearSettings:
    if options.normalises and options.preset not in (None, "mae"):
        raise UserError(
            f"--lp-bn is the preset mae, and --preset {options.preset} was given.",
            "Give one of them.",
        )
    preset = "mae" if options.normalises else options.preset or "moco"
    given: dict[str, Any] = {
        "rates": None if options.rates is None else parse_rates(options.rates),
        "crops": options.crops,
        "epochs": options.epochs,
        "batch": options.batch,
        "resets_last_norm": options.resets_last_norm,
    }
    return replace(
        linear_preset(preset, width), **{k: v for k, v in given.items() if v is not None}
    )


def _finetuned(
    subject: Callable[[torch.device], Subject],
    options: EvaluateOptions,
    device: torch.device,
    show: bool,
) -> Result:
    """Fine-tune in this process or in all ranks of torchrun. Return an empty result on ranks
    other than the first."""
    # Imported here: its data loading has heavy imports that other protocols do not need.
    from accelssl.train.evaluate.finetune import finetune
    from accelssl.train.evaluate.finetune_settings import finetune_settings

    rates = [None] if options.rates is None else list(parse_rates(options.rates))
    if len(rates) > 1:
        raise UserError("Fine-tuning takes one rate.", "Give --lr one number.")
    settings = finetune_settings(
        options.preset or "deit",
        base_lr=rates[0],
        epochs=options.epochs,
        batch=options.batch,
    )
    placed = read_ranks()
    with joined(placed, device_of(placed, device)) as ranks:
        here = subject(device_of(placed, device))
        kept = None
        if here.run is not None:
            kept = here.run / "finetune" / f"{settings.preset}-{here.shards.digest[:12]}"
        found = finetune(
            here.trained.model,
            here.shards,
            settings,
            device_of(placed, device),
            kept,
            show,
            pictures=here.trained.pictures,
            ranks=ranks,
        )
        return here.keep("finetune", found) if ranks.is_main else {}


def _refuse(protocol: str, options: EvaluateOptions) -> None:
    if protocol not in PROTOCOLS:
        raise UserError(f"The protocol {protocol!r} is not known.", f"Use {', '.join(PROTOCOLS)}.")
    for name, protocols in _OPTIONS_OF.items():
        if getattr(options, name) is not None and protocol not in protocols:
            raise UserError(
                f"{option_of(name, 'evaluate')} has no effect with --protocol {protocol}.",
                f"Leave it out, or use --protocol {' or '.join(protocols)}.",
            )
    if protocol != "finetune" and read_ranks().world > 1:
        raise UserError(
            f"--protocol {protocol} was started by torchrun, but runs in one process.",
            "Start it without torchrun.",
        )
