"""The log of a run and the displays that read it."""
