"""Augment, patchify, drop and shrink crops into tokens: the fused op, its kernels and its twin."""
