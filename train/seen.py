"""Pictures of what the network sees, for the report: crops, and what each stage keeps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from accelssl.pipeline.loader import Loader
from accelssl.train.session import Session, loader_options, run_views

NAME = "pictures.npz"
PICTURES = 8


def save_pictures(session: Session, run: Path) -> None:
    """Write RUN/pictures.npz: crops (V, N, H, W, 3), p (stages,), keep_0, keep_1, ... (V, N, L).

    They are the first samples of the run's first epoch, exactly as training sees them.
    """
    options = loader_options(session.config, session.device)
    options = replace(options, batch=min(PICTURES, session.config.batch))
    loader = Loader(session.shards.split("train"), run_views(session.config), options)
    compressions = [stage.compression for stage in session.config.schedule.stages]
    crops, kept = loader.pictures(compressions)
    arrays: dict[str, Any] = {"crops": crops, "p": np.array([c.p for c in compressions])}
    arrays |= {f"keep_{k}": keep_idx.astype(np.int16) for k, keep_idx in enumerate(kept)}
    np.savez_compressed(run / NAME, **arrays)
