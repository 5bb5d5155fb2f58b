"""Training: step, budget, schedule, checkpoints, logs, evaluation and report."""
