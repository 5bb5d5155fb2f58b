"""DALI decoding, and the streams and hardware queues that decoding uses."""
