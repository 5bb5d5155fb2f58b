"""Bytes on disk to compressed tokens on the device."""
