"""Checkpoints: save, keep, resume."""
