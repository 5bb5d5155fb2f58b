"""Batches for evaluation: each image once, its central crop, not augmented, not compressed."""

from collections.abc import Iterator
from contextlib import closing

import numpy as np
import torch
from numpy.typing import NDArray

from accelssl.pipeline.compress import op
from accelssl.pipeline.compression import UNCOMPRESSED
from accelssl.pipeline.decode.crop_stream import crop_stream
from accelssl.pipeline.draws import augmentation
from accelssl.pipeline.draws.draws import Drawn
from accelssl.pipeline.draws.order import Plan, sequential_plans
from accelssl.pipeline.draws.windows import CENTRE, central_windows
from accelssl.pipeline.loader import LoaderOptions, Tokens
from accelssl.pipeline.read.feed import EncodedBatches
from accelssl.shards.shard_set import Split

EVALUATION_SIZE = CENTRE


def evaluation_batches(
    split: Split, options: LoaderOptions, *, is_cubic: bool = True
) -> Iterator[tuple[Tokens, NDArray[np.int64]]]:
    """Yield (Tokens, labels_N) with every sample once, in order, not compressed, not augmented.

    The crop is the central 224 px of the image at short side 256, as by torchvision's
    Resize(256, BICUBIC) and CenterCrop(224). If not is_cubic, the interpolation is that of
    training crops. The last batch may be smaller.
    """
    planned = sequential_plans(len(split), options.batch)
    encoded = EncodedBatches(split, planned, _middle, options.threads)
    sizes = [EVALUATION_SIZE]
    stream = crop_stream(
        split, encoded, sizes, options.batch, options.device, options.decoding, is_cubic
    )
    with closing(stream):
        while batch := next(stream, None):
            encoded_batch, (crops,) = batch
            samples = len(encoded_batch.labels_N)
            grid = UNCOMPRESSED.grid(EVALUATION_SIZE)
            params = torch.from_numpy(augmentation.identity(samples)).to(options.device)
            keep_idx = torch.arange(grid**2, device=options.device).repeat(samples, 1)
            values = op.augment_patchify(crops, params, keep_idx, UNCOMPRESSED.p, options.dtype)
            yield Tokens(values, keep_idx, UNCOMPRESSED.p, grid), encoded_batch.labels_N


def _middle(_: Plan, sizes_N2: NDArray[np.int64]) -> Drawn:
    return Drawn((central_windows(sizes_N2),))
