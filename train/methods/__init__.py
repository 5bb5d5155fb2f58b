"""The methods of self-supervised pretraining: one file each, found in METHODS by name. No torch."""

# isort: off
# Each import registers a method; messages list them in this order.
from accelssl.train.methods import simclr as simclr
from accelssl.train.methods import moco as moco
from accelssl.train.methods import dino as dino

# isort: on
from accelssl.train.methods.method import METHODS, Method, register

__all__ = ["METHODS", "Method", "register"]
