"""EAGLE-1, EAGLE-2 and EAGLE-3: the method is in ``method``, what only it uses in the other modules."""

from methods.eagle.method import Eagle, Eagle3

__all__ = ["Eagle", "Eagle3"]
