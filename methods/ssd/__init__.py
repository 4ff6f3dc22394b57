"""Spacelike speculative decoding (SSD): the method is in ``method``, what only it uses in the other modules."""

from methods.ssd.method import Spacelike

__all__ = ["Spacelike"]
