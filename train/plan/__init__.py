"""The cost and speed of a run, before it starts."""
