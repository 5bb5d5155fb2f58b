"""Self-supervised pretraining of Vision Transformers at a quarter of the cost."""

__version__ = "0.1.0"
