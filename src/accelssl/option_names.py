"""Names of settings on the command line, for messages to users of the command line.

A message names the option that was given, or could be, not the field that holds its value. A field
that no option sets is named as it is: so a file has it.
"""

OPTIONS: dict[str, dict[str, str]] = {}
"""By command: the option of each name that a message may be about."""


def _command(name: str, as_they_are: str, **otherwise: str) -> None:
    """Map each setting to its option: the name with dashes, except for names in `otherwise`."""
    OPTIONS[name] = {each: with_dashes(each) for each in as_they_are.split()} | otherwise


def with_dashes(name: str) -> str:
    """Return 'auto_share' as '--auto-share'."""
    return f"--{name.replace('_', '-')}"


def option_of(name: str, command: str = "train") -> str:
    """Return the command's option that sets `name`; the name itself if no option sets it."""
    return OPTIONS[command].get(name, name)


_command(
    "train",
    "algo model data budget size batch weight_decay warmup temperature head_hidden momentum "
    "symmetric min_area mode prototypes teacher_temp seed eval_every auto_share auto_at "
    "auto_patches auto_drops precision threads readers prefetch hw_load decoders keep_at",
    base_lr="--lr",
    n_local="--local-crops",
    preallocated_px="--preallocate",
    keep_latest="--keep",
)
_command(
    "evaluate",
    "preset crops epochs batch data",
    rates="--lrs",
    base_lr="--lr",
    normalises="--lp-bn",
    resets_last_norm="--reset-last-norm",
    compares="--no-untrained",
)
_command(
    "analyze-gradients",
    "checkpoints data samples subbatch estimator negatives scope step_units seed precision",
    grid="--patches and --drops",
)
_command(
    "shard-imagenet",
    "samples_per_shard limit_per_class max_side short_side seed subset workers",
)
_command("verify-shards", "sample workers")
_command("index-shards", "workers")
