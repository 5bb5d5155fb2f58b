"""RUN/schedule.json: the decisions of a run with --schedule auto, as input for another run."""

from pathlib import Path

from accelssl.errors import UserError
from accelssl.train.checkpoints import checkpoint
from accelssl.train.config.budget import steps_bought
from accelssl.train.config.config import TrainConfig
from accelssl.train.gradients.choose import schedule_json
from accelssl.train.gradients.decision import Decision, decision_of, schedule_of
from accelssl.train.gradients.record import AnalysisRecord, Facts, made_now, write_readable

NAME = "schedule.json"


def write_schedule(config: TrainConfig, run: Path) -> None:
    """Write the decisions in RUN/checkpoint.pt as a schedule, the last one up to the end.

    Without decisions write nothing. Raise UserError when the folder cannot be written.
    """
    state = checkpoint.load(run, at_a_glance=True)
    decisions = [decision_of(content) for content in state.decisions]
    if not decisions:
        return
    stages = tuple(decision.stage for decision in decisions)
    record = AnalysisRecord(_facts(config, state.digest, decisions), stages, made_now())
    chosen = [decision.chosen for decision in decisions]
    costs = {cell.cell: config.batch * cell.cost for cell in chosen}
    schedule = schedule_of(decisions)
    steps = steps_bought(config.budget, [(s.until, costs[s.compression]) for s in schedule.stages])
    more = {"method": config.algo, "budget": config.budget, "batch": config.batch, "steps": steps}
    try:
        write_readable(run / NAME, schedule_json(record, schedule, chosen, more))
    except OSError as error:
        raise UserError(
            f"{run / NAME} cannot be written ({error.strerror}).",
            "Free space on the disk, or make the folder writable.",
        ) from error


def _facts(config: TrainConfig, digest: str, decisions: list[Decision]) -> Facts:
    of_config = ("algo", "mode", "symmetric", "n_local", "model", "size", "batch", "convention")
    return {
        **{name: getattr(config, name) for name in of_config},
        "data": config.data,
        "data_digest": digest,
        "budget": config.budget,
        "progress": [decision.progress for decision in decisions],
        "samples": [decision.samples for decision in decisions],
        "subbatch": [decision.subbatch for decision in decisions],
        "units": sum(decision.units for decision in decisions),
        "seed": config.seed,
        "precision": config.precision,
    }
