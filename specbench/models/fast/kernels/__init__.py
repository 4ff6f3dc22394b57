"""Triton kernels of the fast engine's forward; only what is here needs Triton."""
