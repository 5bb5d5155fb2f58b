"""Sample crops for the report, with the patches that each stage keeps."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelssl.pipeline.loader import Loader
from accelssl.train.session import Session, loader_options, run_views

NAME = "pictures.npz"
PICTURES = 8


def save_pictures(session: Session, run: Path) -> None:
    """Write RUN/pictures.npz: crops (V, N, H, W, 3), p (stages,), keep_0, keep_1, ... (V, N, L).

    L is that of the view that keeps most; -1 follows what the others keep. The crops are those of
    the first samples of the run's first epoch, exactly as training sees them.
    """
    options = loader_options(session.config, session.device)
    options = replace(options, batch=min(PICTURES, session.config.batch))
    split, stages = session.shards.split("train"), session.schedule.stages
    with closing(Loader(split, run_views(session.config), options)) as loader:
        crops, kept = loader.pictures([session.config.compressions(stage) for stage in stages])
    sides = np.array([stage.compression.p for stage in stages])
    arrays: dict[str, Any] = {"crops": crops, "p": sides}
    arrays |= {f"keep_{k}": _stacked(views) for k, views in enumerate(kept)}
    np.savez_compressed(run / NAME, **arrays)


def _stacked(views: list[NDArray[np.int64]]) -> NDArray[np.int16]:
    most = max(keep_idx_NL.shape[1] for keep_idx_NL in views)
    return np.stack(
        [
            np.pad(keep_idx_NL, ((0, 0), (0, most - keep_idx_NL.shape[1])), constant_values=-1)
            for keep_idx_NL in views
        ]
    ).astype(np.int16)
