"""Measurements, each a ratio within one run, with hardware, versions and command."""
