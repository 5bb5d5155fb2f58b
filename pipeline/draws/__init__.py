"""Everything random about a sample, as a pure function of (seed, epoch, sample, view)."""
