"""Hybrid: the method is in ``method``, what only it uses in the other modules."""

from methods.hybrid.method import Hybrid

__all__ = ["Hybrid"]
