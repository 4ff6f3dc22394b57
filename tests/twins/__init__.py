"""Independent twins of the drafters: brute force, written from the papers and public codes, never
from ``methods``.
"""
