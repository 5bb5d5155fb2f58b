"""The commands, one file for each group. Heavy imports wait."""
