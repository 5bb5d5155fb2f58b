"""Self-supervised pretraining of Vision Transformers at a quarter of the cost."""

from importlib.metadata import version

__version__ = version("accelssl")
