"""Ouroboros: the method is in ``method``, what only it uses in the other modules."""

from methods.ouroboros.method import Ouroboros

__all__ = ["Ouroboros"]
