"""Storage for the files of a shard set: a local folder, or a prefix of an object store."""
