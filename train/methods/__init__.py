"""The methods of self-supervised pretraining: one file each, found in METHODS by name. No torch."""

from accelssl.train.methods import dino, moco, simclr  # each registers itself
from accelssl.train.methods.method import METHODS, Method, register

__all__ = ["METHODS", "Method", "dino", "moco", "register", "simclr"]
