"""The summary of a run: one sentence, warnings, and the key figures."""

import math

import numpy as np
from markupsafe import Markup

from accelssl.formats import ABSENT, duration, percent, quantity, times
from accelssl.train.evaluate.result_settings import Result, changes
from accelssl.train.evaluate.results import preset_first
from accelssl.train.methods import METHODS
from accelssl.train.report import page
from accelssl.train.report.history import History, finite
from accelssl.train.report.stage_costs import (
    StageRun,
    Uncompressed,
    counted_speed_up,
    realised_speed_up,
    whole_run,
)

CLASSIFIERS = {"linear": "linear probe", "finetune": "fine-tuned"}
ACCURACIES = (("nn1", "nearest neighbour (nn1)"), ("knn20", "20 nearest neighbours (knn20)"))


def run_name(history: History) -> str:
    """Return method and model as a title."""
    algorithm = str(history.config.get("algo", "unknown method"))
    title = METHODS[algorithm].title if algorithm in METHODS else algorithm
    return f"{title} on {history.config.get('model', 'a model')}"


def opening(history: History) -> list[Markup]:
    """Return title, the run in one sentence, and a warning for each problem."""
    parts = [page.title(run_name(history)), page.paragraph(_summary(history), "lead")]
    parts += [page.paragraph(text, "warning") for text in _warnings(history)]
    if history.resumes:
        at = ", ".join(f"{step:,.0f}" for step in history.resumes)
        parts.append(page.paragraph(f"Resumed at step {at}."))
    return parts


def _summary(history: History) -> str:
    steps = history.steps
    if not len(steps):
        return f"{run_name(history)}: no step has been logged yet."
    spent = quantity(float(steps.spent[-1]))
    budget = f" of {quantity(history.budget)}" if history.budget else ""
    text = (
        f"{run_name(history)} saw {quantity(float(steps.images[-1]))} images for {spent}{budget} "
        f"budget units in {duration(float(steps.elapsed_s[-1]))} of training"
    )
    found = _accuracies(history, "nn1")
    if found["trained"] is None:
        return text + "."
    others = [
        f"{name} {percent(found[key])}"
        for key, name in (("untrained", "an untrained network"), ("pixels", "raw pixels"))
        if found[key] is not None
    ]
    against = f" ({', '.join(others)})" if others else ""
    return (
        f"{text}; {_judged(history)}for {percent(found['trained'])} of the validation pictures the "
        f"nearest training picture in feature space is of the same class{against}."
    )


def _warnings(history: History) -> list[str]:
    steps, texts = history.steps, []
    if len(steps) and history.ended is None:
        texts.append("The log has no end: the run is still training, or its process was killed.")
    elif history.ended not in (None, "budget"):
        texts.append(
            f"The run stopped before its budget was spent ({history.ended}); --resume continues it."
        )
    lost = ~np.isfinite(steps.loss)
    if lost.any():
        first = steps.step[lost.argmax()]
        texts.append(
            f"The loss was not a finite number in {int(lost.sum()):,} of {len(steps):,} logged "
            f"steps, first at step {first:,.0f}."
        )
    if history.unreadable_lines:
        texts.append(
            f"Lines of log.jsonl that could not be read, and are left out: "
            f"{history.unreadable_lines:,}."
        )
    if judged := _judged(history):
        texts.append(f"Accuracies are those {judged}until accelssl evaluate runs again.")
    return texts


def _accuracies(history: History, key: str) -> dict[str, float | None]:
    """Return accuracies in per cent from evaluation.json, or from a later evaluation in the log."""
    found: dict[str, float | None] = {}
    for who in ("trained", "untrained", "pixels"):
        figures = history.evaluation.get(who)
        found[who] = finite(figures.get(key)) if isinstance(figures, dict) else None
    if history.evaluations and (found["trained"] is None or _is_logged_later(history)):
        found["trained"] = finite(getattr(history.evaluations[-1], key))
    return found


def _is_logged_later(history: History) -> bool:
    """Return true if the log has a later evaluation than evaluation.json, as after a resume."""
    if not history.evaluations:
        return False
    step = finite(history.evaluation.get("step"))
    return step is not None and step < history.evaluations[-1].step


def _judged(history: History) -> str:
    """Return the step of the accuracies as a prefix if the run has continued since."""
    if history.evaluations and (not history.evaluation.get("trained") or _is_logged_later(history)):
        step = finite(history.evaluations[-1].step)
    else:
        step = finite(history.evaluation.get("step"))
    steps = history.steps.step
    if step is None or not len(steps) or step >= steps[-1]:
        return ""
    return f"at step {step:,.0f} of {steps[-1]:,.0f}, "


def key_figures(
    history: History, stages: tuple[StageRun, ...], plain: Uncompressed
) -> list[Markup]:
    """Return tiles: accuracies first, then budget, images, time and both speed-ups."""
    found = {name: _accuracies(history, key) for key, name in ACCURACIES}
    judged = _judged(history)
    wide = [
        page.accuracy_tile(f"{judged}{name}", values)
        for name, values in found.items()
        if any(value is not None for value in values.values())
    ]
    wide += _classifier_tiles(history)
    accuracies = page.tiles(wide or [page.tile("accuracy", "not evaluated")], "wide")
    if not stages:
        return [accuracies]
    return [accuracies, page.tiles(_progress_tiles(history, whole_run(stages), plain))]


def _classifier_tiles(history: History) -> list[Markup]:
    """Return top-1 accuracies of linear probes and fine-tuning on the run's own set.

    Results with unchanged presets come first; the others name their changes.
    """
    return [
        page.accuracy_tile(_classifier_title(found, history), _top1(found))
        for protocol in CLASSIFIERS
        for found in preset_first(list(history.results))
        if found.get("protocol") == protocol and found.get("own")
    ]


def _classifier_title(found: Result, history: History) -> str:
    details = [str(found.get("preset", "own settings"))]
    if "crops" in found:
        details.append(f"{found['crops']} crops")
    details += changes(found)
    step, steps = finite(found.get("step")), history.steps
    if step is not None and len(steps) and step != steps.step[-1]:
        details.append(f"at step {step:,.0f}")
    return f"{CLASSIFIERS[found['protocol']]} ({', '.join(details)}), top-1"


def _top1(found: Result) -> dict[str, float | None]:
    # A fine-tuned network has no untrained reference.
    scores = found if "trained" in found else {"trained": found}
    names = [who for who in ("trained", "untrained") if isinstance(scores.get(who), dict)]
    return {who: finite(scores[who].get("top1")) for who in names}


def _progress_tiles(history: History, whole: StageRun, plain: Uncompressed) -> list[Markup]:
    epoch = finite(float(history.steps.epoch[-1]))
    epochs = "" if epoch is None else f"in epoch {math.floor(epoch) + 1:,} of whole batches"
    of_budget = ""
    if history.budget:
        of_budget = f"of {quantity(history.budget)} units, {share_of_budget(whole, history)}"
    counted = counted_speed_up(whole, plain)
    realised = realised_speed_up(whole, plain)
    rate = quantity(whole.images_per_s)
    base = quantity(plain.images_per_s)
    return [
        page.tile("budget spent", quantity(whole.spent), of_budget),
        page.tile("images seen", quantity(whole.images), epochs),
        page.tile("training time", duration(whole.training_s), "evaluation not counted"),
        page.tile(
            "counted speed-up",
            "not known" if counted is None else times(counted),
            f"{quantity(plain.sample_cost)} units an image uncompressed, "
            f"{quantity(whole.sample_cost)} here",
        ),
        page.tile(
            "realised speed-up",
            "not measured" if realised is None else times(realised),
            f"{rate} images/s"
            if realised is None
            else f"{base} images/s uncompressed, {rate} here",
        ),
    ]


def evaluation_note(history: History) -> Markup:
    """Return an explanation of the accuracies."""
    bank, queries = (finite(history.evaluation.get(key)) for key in ("bank", "queries"))
    sizes = ""
    if bank is not None and queries is not None:
        sizes = f" Here {queries:,.0f} validation pictures are compared with {bank:,.0f}."
    return page.paragraph(
        "nn1 is the share of validation pictures whose nearest training picture, by the cosine of "
        "their features, has the same class. In knn20 the 20 nearest vote, weighted by nearness. "
        "Pictures are uncompressed (p16, drop 0). Features are those of the trained network, of "
        f"the same network before training, and the raw pixels.{sizes}"
        f"{_classifier_note(history)}"
    )


def _classifier_note(history: History) -> str:
    if not any(found.get("protocol") == "linear" for found in history.results):
        return ""
    return (
        " A linear probe is a classifier on frozen features. If several learning rates were tried, "
        "the best on the validation set is shown (optimistic)."
    )


def share_of_budget(stage: StageRun, history: History) -> str:
    """Return the share of the run's budget a stage spent; an en dash if the budget is unknown."""
    return percent(100 * stage.spent / history.budget) if history.budget else ABSENT
