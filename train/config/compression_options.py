"""The options --patch, --drop and --schedule, which set the compression of a run."""

from pathlib import Path
from typing import Any

from accelssl.errors import UserError
from accelssl.option_names import option_of
from accelssl.pipeline.compression import Compression, fitting_sides
from accelssl.train.config.auto import BEFORE, UNSAID, Auto, AutoOptions, read_auto
from accelssl.train.config.changed_options import another_run, refuse_change
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.default_schedules import default_schedule
from accelssl.train.config.schedule import Schedule, constant, read_schedule
from accelssl.train.gradients.grid import DROPS

AUTO, DEFAULT = "auto", "default"
"""Values of --schedule that are not files. A file named auto is given as ./auto."""

Compressing = tuple[int | None, float | None, str | Path | None]
"""Values of --patch, --drop and --schedule, None if not given."""


def refuse_contradictions(compression: Compressing, auto_options: AutoOptions = UNSAID) -> None:
    """Raise UserError for options that exclude each other or have no effect alone."""
    patch, drop, schedule = compression
    if schedule is not None and (patch is not None or drop is not None):
        raise UserError(
            "--schedule and --patch or --drop were given together.", "Give one of them."
        )
    if schedule == AUTO:
        return
    for name, value in auto_options._asdict().items():
        if value is not None:
            raise UserError(
                f"{option_of(f'auto_{name}')} was given without --schedule auto.",
                "Give both or neither.",
            )


def settings_of(
    compression: Compressing,
    auto_options: AutoOptions,
    usual: Compression,
    algo: str,
    *,
    may_choose: bool = True,
) -> dict[str, Any]:
    """Return the fields "schedule" and "auto" of a new configuration, None if not given.

    usual: the value of --patch or --drop if only the other option is given.
    may_choose: True if --schedule may be auto; remedies in messages then name this value.
    """
    if compression[2] == AUTO:
        return {"schedule": BEFORE, "auto": read_auto(auto_options)}
    return {"schedule": _schedule(compression, usual, algo, may_choose), "auto": None}


def another_method(config: TrainConfig) -> str | None:
    """Return a note if the schedule was made for another method than the run's, else None."""
    schedule = config.schedule
    if schedule.method in ("", config.algo):
        return None
    return (
        f"Note: {schedule.origin} was made for {schedule.method}, and this run is {config.algo}: "
        "what is best for the one need not be for the other."
    )


def refuse_another(
    config: TrainConfig, compression: Compressing, auto_options: AutoOptions, usual: Compression
) -> None:
    """Raise UserError if the given options differ from the run to be resumed."""
    by_itself = f"--schedule {AUTO}"
    stored = by_itself if config.auto else config.schedule
    is_auto = compression[2] == AUTO
    given = by_itself if is_auto else _schedule(compression, usual, config.algo)
    if given is not None and given != stored:
        raise another_run(f"with {stored}, not {given}", _given(compression))
    if config.auto:
        _refuse_another_choice(config.auto, config.size, auto_options)


def _refuse_another_choice(stored: Auto, size: int, options: AutoOptions) -> None:
    given = read_auto(options)
    for name, had, now in (
        ("share", stored.share, given.share),
        ("at", stored.at, given.at),
        ("patches", stored.patches or fitting_sides(size), given.patches),
        ("drops", stored.drops or DROPS, given.drops),
    ):
        if getattr(options, name) is not None:
            refuse_change(f"auto_{name}", had, now)


def _given(compression: Compressing) -> str:
    """Return the names of the given options."""
    options = zip(("--patch", "--drop", "--schedule"), compression, strict=True)
    return " and ".join(option for option, value in options if value is not None)


def _schedule(
    compression: Compressing, usual: Compression, algo: str, may_choose: bool = True
) -> Schedule | None:
    patch, drop, schedule = compression
    if schedule == DEFAULT:
        return default_schedule(algo)
    if schedule is not None:
        words = f"{AUTO} or {DEFAULT}" if may_choose else DEFAULT
        return read_schedule(Path(schedule), or_else=f", or give {words}")
    if patch is None and drop is None:
        return None
    return constant(
        Compression(usual.p if patch is None else patch, usual.drop if drop is None else drop)
    )
