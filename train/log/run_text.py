"""Text that a run prints at its start and its end."""

from typing import Any

from accelssl.formats import duration
from accelssl.text import plural
from accelssl.train.config.budget import fewer_epochs, format_units, steps_bought
from accelssl.train.gradients.sample_size import affordable
from accelssl.train.session import Session

FEW_STEPS = 100


class LastStep:
    """Watcher that keeps the last step's line. `str()` gives its loss, or nothing without steps."""

    def __init__(self) -> None:
        self._line: dict[str, Any] = {}

    def __call__(self, line: dict[str, Any]) -> None:
        if line["kind"] == "step":
            self._line = line

    def __str__(self) -> str:
        return f", loss {self._line['loss']:.3f}" if self._line else ""


def outline(session: Session) -> str:
    """Return one line with the settings of the run and the steps that its budget pays for."""
    config, images = session.config, len(session.shards.split("train"))
    done = f", {session.step:,} steps are done" if session.step else ""
    return (
        f"{config.method.label}, {config.model}, {images:,} images, batch {config.batch}; "
        f"{format_units(config.budget)} units {_purchase(session, images)}{done}"
    )


def _purchase(session: Session, images: int) -> str:
    """Return the part of the outline about the budget: steps, images, epochs, advice."""
    config = session.config
    if config.auto:
        size, points = affordable(config), ", ".join(f"{100 * at:g}%" for at in config.auto.at)
        return (
            f"for compressions that are chosen at {points} of them, among {len(size.cells)} by "
            f"gradients of {size.samples:,} images, for {100 * config.auto.share:g}% more at most"
        )
    stages = config.schedule.stages
    costs = [config.batch * config.sample_cost(stage) for stage in stages]
    ends = [stage.until for stage in stages]
    steps = steps_bought(config.budget, list(zip(ends, costs, strict=True)))
    parts = [f"{plural(n, 'step')} of {s.compression}" for n, s in zip(steps, stages, strict=True)]
    seen = config.batch * sum(steps)
    epochs = seen / images
    bought = f"buy {', then '.join(parts)}: {seen:,} images, {epochs:,.1f} epochs"
    paid = sum(n * cost for n, cost in zip(steps, costs, strict=True))
    if paid > 1.01 * config.budget:
        bought += f" for {format_units(paid)} units, the last step being a whole one"
    if session.step:
        return bought
    few = "So few steps teach little: a smaller --batch makes more of them"
    advice = [few if sum(steps) < FEW_STEPS else None, fewer_epochs(config.budget, epochs)]
    return ". ".join([bought, *filter(None, advice)])


def outcome(session: Session, last: LastStep) -> str:
    """Return one line with steps, images, time and rate of a run, earlier parts included."""
    rate = session.images / max(session.elapsed_s, 1e-9)
    return (
        f"step {session.step:,}{last}: {session.images:,} images in "
        f"{duration(session.elapsed_s)}, {rate:,.0f} images/s"
    )
