"""The fused op against the bandwidth of the device and against other implementations."""
