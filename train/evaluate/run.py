"""Nearest neighbours of a network, the network before training, and raw pixels, side by side."""

from pathlib import Path

import torch

from accelssl.train.evaluate.features import Extract, pixel_features
from accelssl.train.evaluate.neighbours import neighbours_of
from accelssl.train.evaluate.result_settings import Result
from accelssl.train.evaluate.results import NEAREST
from accelssl.train.evaluate.subject import Subject, open_subject


def evaluate_run(run: Path, data: str | None, device: torch.device, show: bool = True) -> Result:
    """nn1 and knn20 of the run's last checkpoint, its untrained network and raw pixels.

    The bank is the train split, the queries are the val split. Keeps them in RUN/evaluation.json
    and returns them. UserError when there is no run, checkpoint or val split.
    """
    return evaluate_neighbours(open_subject(run, None, None, data, device), show)


def evaluate_neighbours(subject: Subject, show: bool = True) -> Result:
    """The same of any subject."""
    shards = subject.shards
    extracts: dict[str, Extract] = {**subject.networks, "pixels": pixel_features}
    scores = neighbours_of(shards, extracts, subject.options, show)
    sizes = {"bank": len(shards.split("train")), "queries": len(shards.split("val"))}
    return subject.keep(NEAREST, scores | sizes)
