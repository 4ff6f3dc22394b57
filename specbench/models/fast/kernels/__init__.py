"""Triton kernels of the fast engine's forward; only this package needs Triton."""
