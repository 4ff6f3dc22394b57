"""SAM-Decoding: the method is in ``method``, what only it uses in the other modules."""

from methods.sam.method import SAM

__all__ = ["SAM"]
