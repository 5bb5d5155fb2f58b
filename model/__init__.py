"""Tokens to a loss: works without a GPU, DALI or Triton."""
