"""Where the files of a shard set are kept: a local folder, or a prefix of an object store."""
