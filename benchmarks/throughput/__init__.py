"""Speed of each part of training alone and of all parts together."""
