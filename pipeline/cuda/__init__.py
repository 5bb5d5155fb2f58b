"""Run-time compilation and launching of CUDA kernels."""
