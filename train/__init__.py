"""The step, the budget, the schedule, checkpoints, logs, evaluation and the report."""
