"""The configuration of a run: methods, recipes, schedule, budget and cost."""
