"""Data pipeline: from bytes on disk to compressed tokens on the device."""
