"""Cacheback: the class is in ``method``, its parts are in the other modules."""

from methods.cacheback.method import Cacheback

__all__ = ["Cacheback"]
