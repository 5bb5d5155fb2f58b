"""The parts of the job that adopts tars of others: see accelssl.shards.adopt.adopt."""
