"""What a step of bench-throughput computes: SimCLR's operations (train/flops.py)."""

from accelssl.train.flops import ModelShape
from accelssl.train.flops import simclr_flops as step_flops

__all__ = ["ModelShape", "step_flops"]
