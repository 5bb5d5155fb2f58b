"""The evaluated network: the encoder of a run, or a timm model with weights from a file.

Shapes: N pictures, L = S x S tokens of V = 768 values, D width of the features.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from accelssl.errors import UserError
from accelssl.model.tokens import Tokens
from accelssl.pipeline.compress.reference import IMAGENET_MEAN, IMAGENET_STD
from accelssl.pipeline.compression import BASE_SIDE, CHANNELS
from accelssl.pipeline.evaluation import EVALUATION_SIZE
from accelssl.train.checkpoints import checkpoint, resuming
from accelssl.train.config.config import TrainConfig
from accelssl.train.config.config_file import read_config
from accelssl.train.evaluate.weights import load_weights, one_line, read_metadata, read_weights
from accelssl.train.objective import build

FROM_TIMM = "timm:"
VERSION, MODEL, MEAN, STD = "accelssl", "model", "mean", "std"
"""Entries of the metadata in a file of `accelssl export`."""

Colours = dict[str, tuple[float, ...]]
"""MEAN and STD if known, with a number for each channel."""


@dataclass(frozen=True)
class Pictures:
    """The input of a model: square pictures of `size` px, colours (x - mean) / std for x in
    0..1."""

    size: int = EVALUATION_SIZE
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD


class Backbone(nn.Module):
    """A frozen timm model that maps uncompressed tokens of whole pictures to float32 features_ND.

    The features are timm's: model(pictures) without classifier. For a plain VisionTransformer that
    is the CLS token after the last norm; other models pool. `model` is put into evaluation mode
    without gradients.

    model: timm's module without classifier; its state dict is timm's. name: timm's name of the
    model. width: D. pictures: the input. origin: the source of the weights, for people and JSON.
    """

    scale_C11: Tensor
    shift_C11: Tensor

    def __init__(
        self,
        name: str,
        model: nn.Module,
        pictures: Pictures = Pictures(),
        origin: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.model, self.pictures = name, model, pictures
        self.origin = origin or {}
        self.width = _width(model)
        mean, std, mean_here, std_here = (
            torch.tensor(values, dtype=torch.float64).view(CHANNELS, 1, 1)
            for values in (pictures.mean, pictures.std, IMAGENET_MEAN, IMAGENET_STD)
        )
        self.register_buffer("scale_C11", (std_here / std).float(), persistent=False)
        self.register_buffer("shift_C11", ((mean_here - mean) / std).float(), persistent=False)
        self.requires_grad_(False).eval()

    def forward(self, tokens: Tokens) -> Tensor:
        features_ND: Tensor = self.model(self.images(tokens))
        return features_ND.float()

    def images(self, tokens: Tokens) -> Tensor:
        """Return images_NCHW, float32, in the colours and size of `model`.

        At p = 16 tokens are pixels. A model of another size gets the same pictures, resized
        (bicubic, antialiased). Raise ValueError for tokens that are not whole pictures.
        """
        images = whole_pictures(tokens)
        if self.pictures.size != images.shape[-1]:
            side = (self.pictures.size,) * 2
            images = F.interpolate(images, side, mode="bicubic", antialias=True)
        return images * self.scale_C11 + self.shift_C11


def whole_pictures(tokens: Tokens) -> Tensor:
    """Return images_NCHW of uncompressed tokens, in the tokens' normalisation. Raise ValueError
    for other tokens."""
    values_NLV, grid = tokens.values_NLV.float(), tokens.grid
    n, kept, _ = values_NLV.shape
    if tokens.p != BASE_SIDE or kept != grid**2:
        raise ValueError(f"{kept} tokens of p{tokens.p} in a grid of {grid}: not whole pictures.")
    place_NLV = tokens.keep_idx_NL[..., None].expand_as(values_NLV)
    in_order = torch.empty_like(values_NLV).scatter_(1, place_NLV, values_NLV)
    patches = in_order.view(n, grid, grid, CHANNELS, BASE_SIDE, BASE_SIDE)
    side = grid * BASE_SIDE
    return patches.permute(0, 3, 1, 4, 2, 5).reshape(n, CHANNELS, side, side)


def open_backbone(run: Path | None, weights: str | Path | None, model: str | None) -> Backbone:
    """Open the encoder of `run`, or `weights` in timm's `model`, on the CPU.

    weights: a state dict as safetensors or as torch saves it, or "timm:NAME", which timm downloads.
    Files of `accelssl export` need no `model`. Raise UserError unless exactly one of run and
    weights is given, and for files that cannot be read.
    """
    if (run is None) == (weights is None):
        both, none = "Both a run and a --checkpoint were", "Neither a run nor a --checkpoint was"
        given = none if run is None else both
        raise UserError(f"{given} named.", "Name one of them to evaluate.")
    if run is not None:
        if model is not None:
            raise UserError(
                "--model was given with a run, whose model is known.",
                "Leave it out, or name a file of weights with --checkpoint.",
            )
        return of_run(run)
    if str(weights).startswith(FROM_TIMM):
        name = str(weights).removeprefix(FROM_TIMM)
        if model not in (None, name):
            raise UserError(
                f"--model {model} was given for the weights of {name}.", "Leave --model out."
            )
        return _downloaded(name)
    assert weights is not None
    return of_file(Path(weights), model)


def of_run(run: Path) -> Backbone:
    """Open the encoder of a run at its last checkpoint. Raise UserError when none fits."""
    config = read_config(run / "config.json")
    if not (run / checkpoint.NAME).exists():
        raise UserError(
            f"{run} has no checkpoint yet.", f"Train it: accelssl train --out {run} --resume."
        )
    state = checkpoint.load(run)
    resuming.refuse_another_network(run, state, config)
    objective = build(config)
    resuming.load_weights(run, state, objective)
    origin = {"run": str(run), "step": state.step, "spent": state.spent}
    return Backbone(config.model, objective.evaluated.vit, origin=origin)


def untrained(config: TrainConfig) -> Backbone:
    """Build the network that a run of `config` begins with."""
    return Backbone(config.model, build(config).evaluated.vit, origin={"untrained": config.model})


def of_file(path: Path, model: str | None = None) -> Backbone:
    """Open timm's `model` with the weights of a file: see weights.py.

    The metadata of an exported file state the input pictures; for other files timm's configuration
    does. A tag in the name (vit_base_patch16_224.dino) chooses the configuration of these weights.

    Raise UserError for files that cannot be read, an unknown model, and weights that do not match
    the model.
    """
    weights = read_weights(path)
    metadata = read_metadata(path)
    if VERSION not in metadata:
        metadata = {}
    name = model or metadata.get(MODEL)
    if name is None:
        raise UserError(
            f"{path} does not name the model of its weights.",
            "Name timm's model with --model, for example vit_base_patch16_224.dino.",
        )
    network = _create(name, pretrained=False)
    load_weights(network, weights, f"{path} and {name}")
    return _of_timm(name, network, str(path), _colours(path, metadata))


def _downloaded(name: str) -> Backbone:
    return _of_timm(name, _create(name, pretrained=True), FROM_TIMM + name, {})


def _of_timm(name: str, network: nn.Module, where: str, colours: Colours) -> Backbone:
    pictures = _pictures(network, colours)
    origin = {"checkpoint": where, "model": name, "pictures": asdict(pictures)}
    return Backbone(name, network, pictures, origin)


def _width(network: nn.Module) -> int:
    """Return the feature width of a timm model without classifier; some models widen the
    features."""
    return int(getattr(network, "head_hidden_size", 0) or getattr(network, "num_features", 0))


def _create(name: str, *, pretrained: bool) -> nn.Module:
    if not timm.is_model(name):
        raise UserError(
            f"timm has no model named {name!r}.",
            "Name one of timm.list_models(), for example vit_base_patch16_224.",
        )
    try:
        network: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=0)
    except Exception as error:
        raise UserError(
            f"timm could not make {name} ({one_line(error)}).",
            "Check the name and its tag; without network access, name a file with --checkpoint.",
        ) from error
    return network


def _pictures(network: nn.Module, colours: Colours) -> Pictures:
    expected = resolve_model_data_config(network)  # type: ignore[no-untyped-call]
    mean, std = (tuple(colours.get(entry, expected[entry])) for entry in (MEAN, STD))
    return Pictures(int(expected["input_size"][-1]), mean, std)


def _colours(path: Path, metadata: dict[str, str]) -> Colours:
    """Read mean and std from the metadata. Raise UserError for malformed ones."""
    found = {entry: _numbers(metadata[entry]) for entry in (MEAN, STD) if entry in metadata}
    for entry, values in found.items():
        is_a_colour = len(values) == CHANNELS and all(map(math.isfinite, values))
        if not is_a_colour or (entry == STD and min(values) <= 0):
            kind = "numbers above 0" if entry == STD else "numbers"
            raise UserError(
                f"The metadata of {path} has {entry} {metadata[entry]!r}, not three {kind}.",
                "Export the run again with accelssl export.",
            )
    return found


def _numbers(text: str) -> tuple[float, ...]:
    """Parse numbers between commas. Return an empty tuple if one of them is not a number."""
    try:
        return tuple(float(value) for value in text.split(","))
    except ValueError:
        return ()
