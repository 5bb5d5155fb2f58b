"""Checks of decoding: correct pixels from the data path, and the decoder's speed."""

import io
from functools import partial

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from accelssl.benchmarks.doctor.finding import Context, Finding
from accelssl.benchmarks.doctor.pictures import SHOWN, typical_jpegs, write_shown_set
from accelssl.pipeline.compress.reference import IMAGENET_MEAN, IMAGENET_STD
from accelssl.pipeline.compression import BASE_SIDE, CHANNELS
from accelssl.pipeline.draws.windows import central_windows
from accelssl.shards.shard_set import Split, open_shards
from accelssl.shards.write.worker_pool import usable_cores

MOST_LEVELS = 2.3
"""Mean difference from Pillow in 8-bit levels.

On these pictures a decoder that repeats colours instead of interpolating them is 1.3 off, and a
crop that is one pixel off 3.2.
"""
LEAST_CPU_IMAGES_PER_S = 100.0
"""By core. Half of this is what a core of ten years ago decodes."""
LEAST_HARDWARE_GAIN = 1.3
_SECONDS = 1.5
_SIDE = 224  # of the crops that evaluation looks at


def check_data_path_on_cpu(context: Context) -> Finding:
    """Compare tokens that DALI makes from shards on the CPU with Pillow's decoding."""
    return _data_path(context, torch.device("cpu"))


def check_data_path_on_gpu(context: Context) -> Finding:
    """Compare tokens that DALI and the op make from shards on the GPU with Pillow's decoding."""
    return _data_path(context, context.device)


def _data_path(context: Context, device: torch.device) -> Finding:
    # Imported here: without DALI this check fails, and the others go on.
    from accelssl.pipeline.evaluation import evaluation_batches
    from accelssl.pipeline.loader import LoaderOptions

    name = f"shards to tokens, {device.type}"
    shown = context.scratch / "shown"
    split = open_shards(shown if shown.exists() else write_shown_set(context.scratch))
    split_of_all = split.split("train")
    options = LoaderOptions(batch=SHOWN, seed=0, device=device)
    # With the crops of training: on a GPU they are a kernel's of our own.
    batches = [tokens for tokens, _ in evaluation_batches(split_of_all, options, is_cubic=False)]
    pictures = torch.cat([_levels(tokens.values_NLV) for tokens in batches])
    if len(pictures) != len(split_of_all):
        what = f"{len(pictures)} of {len(split_of_all)} pictures came"
        return Finding(name, "broken", what, "Install accelssl and DALI anew.")
    gap = float((pictures - _as_pillow_shows(split_of_all)).abs().mean())
    found = f"{gap:.2f} levels of 255 from Pillow, on the mean"
    if not gap <= MOST_LEVELS:
        remedy = f"Do not train here: pictures are wrong (at most {MOST_LEVELS} is right)."
        return Finding(name, "broken", found, remedy)
    return Finding(name, "ok", found)


def _levels(values_NLV: Tensor) -> Tensor:
    """Reassemble uncompressed tokens to images_NHWC in 8-bit levels."""
    grid = _SIDE // BASE_SIDE
    patches = values_NLV.cpu().double().view(-1, grid, grid, CHANNELS, BASE_SIDE, BASE_SIDE)
    images = patches.permute(0, 1, 4, 2, 5, 3).flatten(3, 4).flatten(1, 2)
    return (images * torch.tensor(IMAGENET_STD) + torch.tensor(IMAGENET_MEAN)) * 255


def _as_pillow_shows(split: Split) -> Tensor:
    images = []
    for i in range(len(split)):
        image = Image.open(io.BytesIO(split.read(i)[0])).convert("RGB")
        top, left, bottom, right = central_windows(np.array([image.size[::-1]]))[0].tolist()
        window = (left, top, right, bottom)
        shown = image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, window)
        images.append(np.asarray(shown, dtype=np.float64))
    return torch.from_numpy(np.stack(images))


def check_decoder_on_cpu(context: Context) -> Finding:
    """Measure the rate of libjpeg-turbo on all usable cores."""
    cores = usable_cores()
    rate = _rate(context, 0)
    found = f"{rate:,.0f} images/s of 500 x 375 px on {cores} cores"
    if rate < LEAST_CPU_IMAGES_PER_S * cores:
        remedy = "See what else runs (top): these cores are shared, throttled or under a quota."
        return Finding("decoder, cpu", "slow", found, remedy)
    return Finding("decoder, cpu", "ok", found)


def check_hardware_decoder(context: Context) -> Finding:
    """Ask nvJPEG for a hardware decoder and measure how much faster DALI is with it."""
    from accelssl.benchmarks.doctor.jpeg_engines import NoAnswer, jpeg_engines

    name, rate = "decoder, gpu", partial(_rate, context)
    try:
        engines, cores = jpeg_engines(context.device)
    except NoAnswer as error:
        remedy = "Install nvidia-nvjpeg, which DALI brings: without it images are decoded slowly."
        return Finding(name, "broken", str(error), remedy)
    without = rate(0.0)
    if not engines:
        found = f"{without:,.0f} images/s by CUDA cores; this card has no hardware JPEG decoder"
        remedy = "Expect decoding to limit strong compression; more CPU cores help."
        return Finding(name, "absent", found, remedy)
    with_it = rate(1.0)
    found = (
        f"{with_it:,.0f} images/s by hardware ({engines} engine(s) of {cores} cores), "
        f"{without:,.0f} by CUDA cores"
    )
    if with_it < LEAST_HARDWARE_GAIN * without:
        remedy = "See that no other program decodes on this GPU and that nvidia-nvjpeg is current."
        return Finding(name, "slow", found, remedy)
    return Finding(name, "ok", found)


def _rate(context: Context, hardware_load: float) -> float:
    from accelssl.benchmarks.doctor.dali_decoder import images_per_s

    device = context.device
    return images_per_s(typical_jpegs(), device, hardware_load, _SECONDS)
