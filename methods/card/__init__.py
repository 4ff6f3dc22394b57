"""CARD: the class is in ``method``, its parts are in the other modules."""

from methods.card.method import Card

__all__ = ["Card"]
