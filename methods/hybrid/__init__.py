"""Hybrid: the class is in ``method``, its parts are in the other modules."""

from methods.hybrid.method import Hybrid

__all__ = ["Hybrid"]
