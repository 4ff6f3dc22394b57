"""Cacheback: the method is in ``method``, what only it uses in the other modules."""

from methods.cacheback.method import Cacheback

__all__ = ["Cacheback"]
