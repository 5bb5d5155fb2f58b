"""Export of a run's encoder as a file for timm."""

from importlib.metadata import version
from pathlib import Path

from safetensors.torch import save

from accelssl.errors import UserError
from accelssl.files import refuse_existing, whole_file
from accelssl.pipeline.draws.windows import CENTRE, SHORT_SIDE
from accelssl.train.config.config_file import read_config
from accelssl.train.evaluate.backbone import MEAN, MODEL, STD, VERSION, Backbone, of_run

SUFFIX = ".safetensors"


def export_encoder(run: Path, file: Path, *, replaces: bool = False) -> str:
    """Write the evaluated encoder at the last checkpoint, and return the line that loads the file.

    `file` holds timm's state dict without a classifier. Its metadata: model, algo, version, step,
    budget, units spent, mean and standard deviation of the input colours (0 to 1), and the loading
    line. The file is written atomically.

    Raise UserError when the run has no checkpoint, the name does not end in .safetensors, or the
    file exists without `replaces` or cannot be written.
    """
    if file.suffix != SUFFIX:
        raise UserError(
            f"{file} is not the name of a safetensors file.",
            f"Call it {file.with_suffix(SUFFIX)}.",
        )
    refuse_existing(file, replaces)
    backbone = of_run(run)
    line = loading_line(backbone, file)
    tensors = {name: value.contiguous() for name, value in backbone.model.state_dict().items()}
    _write(file, save(tensors, _metadata(run, backbone) | {"load": line}))
    return line


def loading_line(backbone: Backbone, file: Path) -> str:
    """Return the Python line that loads an exported file, after `import timm`.

    The line states the input pictures, so that timm's transforms match the evaluation here.
    """
    colours = backbone.pictures
    taken = (
        f"dict(mean={tuple(colours.mean)}, std={tuple(colours.std)}, "
        f"crop_pct={CENTRE / SHORT_SIDE}, interpolation='bicubic')"
    )
    return (
        f'timm.create_model("{backbone.name}", checkpoint_path="{file}", num_classes=0, '
        f"pretrained_cfg_overlay={taken})"
    )


def _metadata(run: Path, backbone: Backbone) -> dict[str, str]:
    """Return the metadata as text, which safetensors requires. Other readers look for "format"."""
    config = read_config(run / "config.json")
    return {
        "format": "pt",
        MODEL: backbone.name,
        MEAN: ",".join(map(str, backbone.pictures.mean)),
        STD: ",".join(map(str, backbone.pictures.std)),
        "algo": config.algo,
        VERSION: version("accelssl"),
        "step": str(backbone.origin["step"]),
        "spent": str(backbone.origin["spent"]),
        "budget": str(config.budget),
    }


def _write(file: Path, content: bytes) -> None:
    try:
        with whole_file(file) as stream:
            stream.write(content)
    except OSError as error:
        raise UserError(
            f"{file} could not be written ({error.strerror}).",
            "Name a place that exists, is writable and has room.",
        ) from error
