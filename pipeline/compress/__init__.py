"""Sequence compression: which patches are kept, and the op that turns crops into tokens."""
