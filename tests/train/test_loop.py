"""An evaluation within a run that cannot be made."""

from pathlib import Path
from typing import Any

import pytest

from accelssl.errors import UserError
from accelssl.train import checkpoint, loop
from accelssl.train.session import start
from tests.train.any_run import CPU, config_on
from tests.train.run_log import lines


def test_a_network_whose_features_are_lost_ends_the_run_as_a_lost_loss_does(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last good checkpoint stays, and the log has an end: other ranks are told by it."""

    def lost_features(encoder: Any) -> Any:
        return lambda tokens: tokens.values_NLV[:, 0] * float("nan")

    monkeypatch.setattr(loop, "encoder_features", lost_features)
    run = tmp_path / "run"
    session = start(config_on(shard_dir, eval_every=0.5), run, CPU)
    session.save(run)
    with pytest.raises(UserError, match="network 'trained' are not finite"):
        loop.train(session, run)
    assert checkpoint.load(run).step == 0 < session.step
    (end,) = lines(run, "end")
    assert end["reason"] == "failure" and not lines(run, "eval")
