"""Verification of a shard set; see `verify.verify_shards`."""
