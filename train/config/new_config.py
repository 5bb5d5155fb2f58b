"""Construction of the configuration of a new run from its options. No torch.

The base is a named recipe, or the recipe of the method. Options override single settings.
"""

from typing import Any

from accelssl.errors import UserError
from accelssl.option_names import option_of
from accelssl.pipeline.compression import Compression
from accelssl.train.config import named_recipes, recipes
from accelssl.train.config.auto import UNSAID, AutoOptions
from accelssl.train.config.compression_options import Compressing, settings_of
from accelssl.train.config.config import DEFAULT_COMPRESSION, TrainConfig
from accelssl.train.config.schedule import constant
from accelssl.train.methods.method import METHODS, method_named

DEFAULT_ALGORITHM = "simclr"
DEFAULT_MODEL = "vit_base_patch16_224"


def named_recipe(
    name: str | None, algo: str | None, small: bool, *, resuming: bool = False
) -> named_recipes.Recipe | None:
    """Look up a recipe. Raise UserError for an unknown name or conflicting options."""
    if small and resuming:
        raise UserError("--small was given with --resume.", "Leave it out: the run has its own.")
    if name is None:
        return None
    found = named_recipes.find(name)
    if resuming:
        raise UserError("--recipe was given with --resume.", "Leave it out: the run has its own.")
    for option, is_given in (("--algo", algo is not None), ("--small", small)):
        if is_given:
            raise UserError(
                f"{option} was given together with --recipe {name}.",
                f"Leave {option} out: the recipe says what it is.",
            )
    return found


def new_config(
    *,
    algo: str | None,
    data: str | None,
    compression: Compressing,
    auto: AutoOptions = UNSAID,
    small: bool,
    options: dict[str, Any],
    named: named_recipes.Recipe | None,
    may_choose: bool = True,
) -> TrainConfig:
    """Return the configuration of a new run.

    options: fields of TrainConfig, None for the value of the recipe.
    may_choose: as in settings_of.

    Raise UserError for invalid values, and if data or budget are missing.
    """
    method = _algorithm(algo, named)
    usual = usual_compression(named)
    said = settings_of(compression, auto, usual, method, may_choose=may_choose)
    return _recipe(method, data, options | said, small, named)


def _algorithm(algo: str | None, named: named_recipes.Recipe | None) -> str:
    found = algo or (named.make("").algo if named else DEFAULT_ALGORITHM)
    return method_named(found).name


def usual_compression(named: named_recipes.Recipe | None) -> Compression:
    """Return the compression that completes --patch without --drop, or --drop without --patch.

    This is the recipe's compression if the recipe has exactly one stage, else the default.
    """
    stages = named.make("").schedule.stages if named else ()
    return stages[0].compression if len(stages) == 1 else DEFAULT_COMPRESSION


def _recipe(
    algo: str,
    data: str | None,
    options: dict[str, Any],
    small: bool,
    named: named_recipes.Recipe | None,
) -> TrainConfig:
    if data is None:
        raise UserError("No shard set was named.", "Name its folder with --data.")
    if options["budget"] is None and named is None:
        raise UserError(
            "No budget was given.",
            "Say what to spend, for example --budget 0.2M; accelssl plan --hours 8 finds one.",
        )
    given = {name: value for name, value in options.items() if value is not None}
    _refuse_settings_of_others(algo, given)
    if small:
        named = named_recipes.find(f"{algo}_small")
        given = {"model": DEFAULT_MODEL} | given
    if named is not None:
        return named.make(data, **given)
    return recipes.usual(
        algo,
        given.pop("model", DEFAULT_MODEL),
        data,
        given.pop("budget"),
        given.pop("schedule", constant(DEFAULT_COMPRESSION)),
        **given,
    )


def _refuse_settings_of_others(algo: str, given: dict[str, Any]) -> None:
    """Raise UserError for a setting that only other methods have."""
    for name in given:
        algorithms = [other for other, each in METHODS.items() if name in each.own_settings()]
        if algorithms and algo not in algorithms:
            raise UserError(
                f"{option_of(name)} has no effect with {algo}.",
                f"Leave it out, or use --algo {' or '.join(algorithms)}.",
            )
