"""The command `accelssl schedule`: from an analysis to a schedule file. No torch."""

from pathlib import Path

from accelssl.errors import UserError
from accelssl.files import refuse_existing
from accelssl.train.config.budget import parse_units, steps_bought
from accelssl.train.gradients.choose import (
    BETWEEN,
    chosen_cells,
    schedule_json,
    schedule_of,
    ties_of,
)
from accelssl.train.gradients.record import AnalysisRecord, read_record, write_readable


def plan_schedule(
    file: Path,
    budget: str,
    out: Path,
    *,
    rises: bool = True,
    between: str = "steps",
    replaces: bool = False,
) -> str:
    """Write a schedule for `budget` units from an analysis, and return a table of its stages.

    Raise UserError for invalid options, and if `out` exists and `replaces` is false.
    """
    way = next((known for known in BETWEEN if known == between), None)
    if way is None:
        raise UserError(f"--between {between} is not known.", f"Use {' or '.join(BETWEEN)}.")
    refuse_existing(out, replaces)
    record, units = read_record(file), parse_units(budget)
    chosen = chosen_cells(record, rises=rises)
    schedule = schedule_of(record, chosen, way)
    costs = {cell.cell: cell.cost for stage in record.stages for cell in stage.cells}
    batch = int(record.facts["batch"])
    priced = [(s.until, batch * costs[s.compression]) for s in schedule.stages]
    steps = steps_bought(units, priced)
    more = {"method": record.facts["algo"], "budget": units, "batch": batch, "steps": steps}
    try:
        write_readable(out, schedule_json(record, schedule, chosen, more))
    except OSError as error:
        raise UserError(
            f"{out} cannot be written ({error.strerror}).",
            "Name a file in a folder that is there and can be written with --out.",
        ) from error
    lines = [
        f"at {stage.share:4.0%}  {cell.cell!s:10}  {len(ties_of(stage))} of {len(stage.cells)} "
        "statistically equal to the best"
        for stage, cell in zip(record.stages, chosen, strict=True)
    ]
    lines += _undecided(record)
    lines += [
        f"until {stage.until:6.1%}  {stage.compression!s:10}  {count:,} steps of {batch}"
        for stage, count in zip(schedule.stages, steps, strict=True)
    ]
    return "\n".join([*lines, f"train with: --budget {budget} --schedule {out}"])


def _undecided(record: AnalysisRecord) -> list[str]:
    """Return a line about the stages where all cells tie, if there are any."""
    shares = [
        f"{stage.share:.0%}"
        for stage in record.stages
        if len(stage.cells) > 1 and len(ties_of(stage)) == len(stage.cells)
    ]
    if not shares:
        return []
    return [
        f"at {', '.join(shares)} all compressions are statistically equal to the best. Run "
        "analyze-gradients with more --samples and another --out to separate them."
    ]
