"""The report of a run: one HTML file made from the folder of the run."""
