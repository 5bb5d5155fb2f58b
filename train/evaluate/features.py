"""Features of a whole split, uncompressed: of an encoder, and of nothing but the pixels."""

from collections.abc import Callable

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from accelssl.model.vit import Encoder
from accelssl.pipeline.loader import LoaderOptions, Tokens, evaluation_batches
from accelssl.pipeline.shards import Split

PIXEL_BLOCK = 8

Extract = Callable[[Tokens], Tensor]


@torch.no_grad()
def features(
    split: Split, extracts: dict[str, Extract], options: LoaderOptions, show: bool = False
) -> tuple[dict[str, Tensor], Tensor]:
    """features_ND by name for each of `extracts`, and labels_N, read in one pass."""
    parts: dict[str, list[Tensor]] = {name: [] for name in extracts}
    labels = []
    batches = evaluation_batches(split, options)
    shown = track(
        batches,
        f"features of {split.name}",
        -(-len(split) // options.batch),
        console=Console(stderr=True),
        disable=not show,
    )
    for tokens, labels_N in shown:
        for name, extract in extracts.items():
            parts[name].append(extract(tokens))
        labels.append(torch.from_numpy(labels_N))
    joined = {name: torch.cat(part) for name, part in parts.items()}
    return joined, torch.cat(labels).to(options.device)


def encoder_features(encoder: Encoder) -> Extract:
    """CLS features of `encoder`, in evaluation mode."""

    def extract(tokens: Tokens) -> Tensor:
        training = encoder.training
        encoder.eval()
        # Blocks that training compiled are not compiled once more for this.
        with torch.compiler.set_stance("force_eager"):
            features_ND: Tensor = encoder(
                tokens.values_NLV, tokens.keep_idx_NL, tokens.p, tokens.grid
            )
        encoder.train(training)
        return features_ND.float()

    return extract


def pixel_features(tokens: Tokens) -> Tensor:
    """The picture itself, averaged over 8 x 8 pixels: 28 x 28 x 3 values at 224 px."""
    n, patches, _ = tokens.values_NLV.shape
    blocks = tokens.values_NLV.float().view(n, patches * 3, tokens.p, tokens.p)
    return torch.nn.functional.avg_pool2d(blocks, PIXEL_BLOCK).flatten(1)
