"""The subject of an evaluation: a network, the same network before training, and facts about
both."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch

from accelssl.errors import UserError
from accelssl.pipeline.loader import LoaderOptions
from accelssl.shards.shard_set import ShardSet, open_shards
from accelssl.shards.write.worker_pool import usable_cores
from accelssl.train.checkpoints import checkpoint
from accelssl.train.config.config_file import read_config
from accelssl.train.evaluate.backbone import Backbone, open_backbone, untrained
from accelssl.train.evaluate.features import evaluation_batch, evaluation_options
from accelssl.train.evaluate.neighbours import refuse_unjudgeable
from accelssl.train.evaluate.result_settings import Result
from accelssl.train.evaluate.results import keep_result


@dataclass(frozen=True)
class Subject:
    """The network as trained and, if asked for, before training; both on a device.

    facts go into every result. run, and digest of the set it was trained on, are None for a file of
    weights.
    """

    trained: Backbone
    untrained: Backbone | None
    shards: ShardSet
    options: LoaderOptions
    facts: dict[str, Any]
    run: Path | None = None
    digest: str | None = None

    @property
    def networks(self) -> dict[str, Backbone]:
        """Return the networks by name: trained and, if there, untrained."""
        found = {"trained": self.trained}
        return found if self.untrained is None else found | {"untrained": self.untrained}

    def keep(self, protocol: str, scores: Result) -> Result:
        """Add the facts to the scores and return them. For a run, also keep them in
        RUN/evaluation.json."""
        result = {"protocol": protocol} | scores | self.facts
        result |= {"data": self.shards.location, "digest": self.shards.digest}
        if self.run is not None:
            result["own"] = self.shards.digest == self.digest
            keep_result(self.run, result)
        return result


def open_subject(
    run: Path | None,
    weights: str | None,
    model: str | None,
    data: str | None,
    device: torch.device,
    *,
    with_untrained: bool = True,
) -> Subject:
    """Open a run at its last checkpoint, or weights (see open_backbone), with a shard set.

    The default set of a run is its own. Raise UserError for a set without val split, and where
    open_backbone does.
    """
    if run is None and weights is not None and data is None:
        raise UserError("No shard set was named.", "Name its folder with --data.")
    trained = open_backbone(run, weights, model)
    if run is None:
        assert data is not None
        before = untrained_model(trained) if with_untrained else None
        options = LoaderOptions(evaluation_batch(device), 0, device, threads=usable_cores())
        facts, digest = trained.origin, None
    else:
        config = read_config(run / "config.json")
        before = untrained(config) if with_untrained else None
        options = evaluation_options(config, device)
        facts = {name: trained.origin[name] for name in ("step", "spent")}
        digest = checkpoint.load(run, at_a_glance=True).digest
        data = data or config.data
    shards = open_shards(data)
    refuse_unjudgeable(shards)
    before = None if before is None else before.to(device)
    return Subject(trained.to(device), before, shards, options, facts, run, digest)


def untrained_model(trained: Backbone) -> Backbone:
    """Return timm's model of that name as initialised with seed 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = timm.create_model(trained.name, pretrained=False, num_classes=0)
    return Backbone(trained.name, network, trained.pictures)
