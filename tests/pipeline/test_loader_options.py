"""Defaults of the loader options on a GPU and on a CPU."""

from dataclasses import replace

import pytest
import torch

from accelssl.errors import UserError
from accelssl.pipeline.loader import LoaderOptions

GPU = LoaderOptions(batch=8, seed=0, device=torch.device("cuda"), threads=16)
CPU = replace(GPU, device=torch.device("cpu"))


def test_a_gpu_has_two_decoders_unless_told_otherwise() -> None:
    assert (GPU.decoding.decoders, CPU.decoding.decoders) == (2, 1)
    assert replace(GPU, decoders=3).decoding.decoders == 3


def test_each_decoder_has_batches_of_its_own_ahead() -> None:
    assert replace(GPU, decoders=3, prefetch=2).decoding.batches_ahead == 6
    assert replace(CPU, prefetch=2).decoding.batches_ahead == 2


def test_few_threads_leave_more_images_to_the_engines() -> None:
    assert GPU.decoding.hw_load == 0.85 < replace(GPU, threads=8).decoding.hw_load
    assert replace(GPU, hw_load=0.0).decoding.hw_load == 0


def test_no_more_than_eight_threads_decode_beside_a_gpus_engines() -> None:
    assert GPU.decoding.threads == 8 and replace(GPU, threads=3).decoding.threads == 3
    assert CPU.decoding.threads == 16


def test_decoders_out_of_bounds_are_refused() -> None:
    with pytest.raises(UserError, match="decoders is 65"):
        _ = replace(GPU, decoders=65).decoding
