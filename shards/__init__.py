"""Shard sets on disk or in S3: read, write, verify and adopt WebDataset tars."""
