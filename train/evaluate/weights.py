"""Load weights from a file into a timm model: all except a classifier's, or raise an error."""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from timm.models import load_state_dict
from torch import Tensor, nn

from accelssl.errors import UserError
from accelssl.train.checkpoints.checkpoint import refuse_damage

Weights = dict[str, Tensor]
_COUNTER = "num_batches_tracked"  # of batch norms: features do not depend on it


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file; empty for other files. Raise UserError if the
    file is unreadable."""
    if path.suffix != ".safetensors":
        return {}
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def read_weights(path: Path) -> Weights:
    """Return a state dict on the CPU from safetensors or a file of torch.save.

    torch.save files hold the state dict alone or under "model", "state_dict" or their moving
    average. Raise UserError for anything else.
    """
    if not path.is_file():
        raise _unreadable(path, FileNotFoundError())
    refuse_damage(path, "Copy or download it again.", may_be_no_zip=True)
    try:
        # Files of timm, DeiT and MAE hold the training options beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
            state: dict[str, Any] = load_state_dict(str(path), weights_only=True)
    except Exception as error:
        raise _unreadable(path, error) from error
    if "objective" in state:
        raise UserError(
            f"{path} is the checkpoint of a run.", "Name the run's folder instead of the file."
        )
    wrong = [name for name, value in state.items() if not isinstance(value, Tensor)]
    if wrong:
        raise UserError(
            f"{path} is no state dict: {_some(wrong)} are no tensors.",
            "Save the model's state dict alone, or under the key model or state_dict.",
        )
    return state


def load_weights(network: nn.Module, weights: Weights, both: str) -> None:
    """Load all of `weights` except a classifier's. `both` names file and model in messages.

    Positions and patch kernels of another size are resampled as timm does. Raise UserError naming
    weights that are missing, unexpected, of another shape, not floating point, or not finite.
    """
    adapt = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    try:
        if adapt is not None:
            weights = adapt(weights, network)
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise _do_not_match(both, one_line(error)) from error
    own = network.state_dict()
    shapes = {name: value.shape for name, value in own.items()}
    floats = {name for name, value in own.items() if value.is_floating_point()}
    heads = _classifiers(network)
    differences = {
        "missing": [n for n in shapes if n not in weights and not n.endswith(_COUNTER)],
        "too much": [n for n in weights if n not in shapes and not n.startswith(heads)],
        "of another shape": [n for n, w in weights.items() if shapes.get(n, w.shape) != w.shape],
        "no floats": [n for n, w in weights.items() if n in floats and not w.is_floating_point()],
    }
    if any(differences.values()):
        parts = [f"{what}: {_some(names)}" for what, names in differences.items() if names]
        raise _do_not_match(both, "; ".join(parts))
    network.load_state_dict(weights, strict=False)
    # Check the loaded weights: the file's numbers may be too large for the network's type.
    own = network.state_dict()
    lost = [name for name in floats if name in weights and not bool(own[name].isfinite().all())]
    if lost:
        raise UserError(
            f"{both}: not all weights are finite ({_some(sorted(lost))}).",
            "Name weights of before the training diverged.",
        )


def _classifiers(network: nn.Module) -> tuple[str, ...]:
    """Return the name prefixes of the classifier's weights."""
    named = getattr(network, "pretrained_cfg", {}).get("classifier") or ()
    return tuple(f"{name}." for name in ([named] if isinstance(named, str) else named))


def _do_not_match(both: str, reason: str) -> UserError:
    return UserError(
        f"{both} do not match ({reason}).", "Name the model the weights were trained in: --model."
    )


def _unreadable(path: Path, error: Exception) -> UserError:
    why = one_line(error).partition(" If this checkpoint is trusted")[0]
    if not path.is_file():
        why = "it is a folder" if path.is_dir() else "there is no such file"
    return UserError(
        f"{path} cannot be read as weights ({why}).",
        "Name a state dict: a .safetensors file, or one of torch.save (.pt, .pth).",
    )


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def one_line(error: Exception) -> str:
    """Return the error's text in one line of at most 200 characters: torch lists every tensor."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
