"""Decode JPEGs with DALI; manage the streams, leases and hardware queues of the decoder."""
