"""Draw all randomness of a sample as a pure function of (seed, epoch, sample, view)."""
