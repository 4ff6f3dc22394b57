"""CARD: the method is in ``method``, what only it uses in the other modules."""

from methods.card.method import Card

__all__ = ["Card"]
