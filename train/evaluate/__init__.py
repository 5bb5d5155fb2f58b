"""Evaluation of representations: uncompressed images, features of the backbone."""
