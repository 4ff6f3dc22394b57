"""SAM-Decoding: the class is in ``method``, its parts are in the other modules."""

from methods.sam.method import SAM

__all__ = ["SAM"]
