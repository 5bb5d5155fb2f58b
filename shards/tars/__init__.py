"""Reading tar archives in place: members, samples, and hashes on the way."""
