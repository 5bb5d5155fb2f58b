"""Saving, keeping and resuming of checkpoints."""
