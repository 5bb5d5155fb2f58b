"""Fused kernels, each beside its torch twin."""
