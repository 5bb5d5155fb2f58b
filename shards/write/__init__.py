"""The parts of the job that writes a shard set: see accelssl.shards.write.shard_imagenet."""
