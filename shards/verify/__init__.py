"""Checks a shard set as deeply as its files allow; see `verify.verify_shards`."""
