"""Features of whole uncompressed pictures: of a network, or the pixels themselves.

Shapes: N pictures, D feature width.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import replace

import torch
from torch import Tensor

from accelssl.errors import UserError
from accelssl.model.vit import Encoder
from accelssl.pipeline.compression import UNCOMPRESSED
from accelssl.pipeline.evaluation import EVALUATION_SIZE, evaluation_batches
from accelssl.pipeline.loader import Loader, LoaderOptions, Tokens
from accelssl.pipeline.views import View
from accelssl.progress_lines import told
from accelssl.shards.shard_set import Split
from accelssl.train.config.config import TrainConfig

PIXEL_BLOCK = 8
# Training crops of a linear classifier: cropped and flipped as in pretraining, no colour jitter.
PROBE_VIEW = View("probe", EVALUATION_SIZE, jitter_p=0.0, gray_p=0.0)

Extract = Callable[[Tokens], Tensor]
Labelled = tuple[dict[str, Tensor], Tensor]
"""features_ND by name, and labels_N."""


@torch.no_grad()
def features(
    split: Split, extracts: dict[str, Extract], options: LoaderOptions, show: bool = False
) -> Labelled:
    """Return features_ND for each of `extracts`, of the central crops of `split`, in one pass.

    Raise UserError for features that are not finite.
    """
    parts = []
    batches = evaluation_batches(split, options)
    shown = told(batches, f"features of {split.name}", -(-len(split) // options.batch), show)
    for tokens, labels_N in shown:
        found = {name: extract(tokens) for name, extract in extracts.items()}
        parts.append((found, torch.from_numpy(labels_N).to(options.device)))
    return joined(parts)


def joined(parts: list[Labelled]) -> Labelled:
    """Combine several extractors into one. The combined one raises UserError for features that
    are not finite."""
    names = parts[0][0]
    found = {name: torch.cat([features[name] for features, _ in parts]) for name in names}
    _refuse_lost_numbers(found)
    return found, torch.cat([labels_N for _, labels_N in parts])


def features_of_random_crops(
    split: Split, extracts: dict[str, Extract], options: LoaderOptions, epochs: int
) -> Generator[Iterator[Labelled], None, None]:
    """Yield for each epoch its batches: features of random crops (PROBE_VIEW) in random order.

    Batches are full: an epoch leaves out the remainder. A split smaller than a batch is one batch.
    Raise UserError for features that are not finite.
    """
    options = replace(options, batch=min(options.batch, len(split)))
    batches = len(split) // options.batch
    compressions = (UNCOMPRESSED,)

    def batch(loader: Loader, is_last: bool) -> Labelled:
        made = loader.next(compressions, then=None if is_last else compressions)
        found = {name: extract(made.views[0]) for name, extract in extracts.items()}
        _refuse_lost_numbers(found)
        return found, torch.from_numpy(made.labels_N).to(options.device)

    with closing(Loader(split, [PROBE_VIEW], options)) as loader:
        for epoch in range(epochs):
            ends = epoch + 1 == epochs
            yield (batch(loader, ends and k + 1 == batches) for k in range(batches))


def _refuse_lost_numbers(found: dict[str, Tensor]) -> None:
    """Raise UserError if features or their squares are not finite. Neighbours and probes would
    be arbitrary."""
    for name, features_ND in found.items():
        if not bool(features_ND.float().norm(dim=1).isfinite().all()):
            raise UserError(
                f"Features of the network {name!r} are not finite, or too large to compare.",
                "Take weights of before it diverged, or train again with a lower --lr.",
            )


def encoder_features(encoder: Encoder) -> Extract:
    """Return the CLS features of `encoder` in evaluation mode."""

    def extract(tokens: Tokens) -> Tensor:
        training = encoder.training
        encoder.eval()
        # Do not compile the blocks again for evaluation.
        with torch.compiler.set_stance("force_eager"):
            features_ND: Tensor = encoder(
                tokens.values_NLV, tokens.keep_idx_NL, tokens.p, tokens.grid
            )
        encoder.train(training)
        return features_ND.float()

    return extract


def pixel_features(tokens: Tokens) -> Tensor:
    """Return the picture averaged over 8 x 8 pixels: 28 x 28 x 3 values at 224 px."""
    n, patches, _ = tokens.values_NLV.shape
    blocks = tokens.values_NLV.float().view(n, patches * 3, tokens.p, tokens.p)
    return torch.nn.functional.avg_pool2d(blocks, PIXEL_BLOCK).flatten(1)


def evaluation_batch(device: torch.device) -> int:
    """Return a batch size that fits into memory beside a training run of any batch size."""
    return 64 if device.type == "cpu" else 256


def evaluation_options(config: TrainConfig, device: torch.device) -> LoaderOptions:
    """Return loader options for evaluating a run: float32 tokens and the run's decoding
    settings."""
    return LoaderOptions(
        evaluation_batch(device),
        config.seed,
        device,
        threads=config.threads,
        prefetch=config.prefetch,
        hw_load=config.hw_load,
        preallocated_px=config.preallocated_px,
    )
