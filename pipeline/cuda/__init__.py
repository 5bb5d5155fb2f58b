"""Compile CUDA kernels at run time, load them and launch them."""
