"""EAGLE-1, EAGLE-2 and EAGLE-3: the class is in ``method``, its parts are in the other modules."""

from methods.eagle.method import Eagle, Eagle3

__all__ = ["Eagle", "Eagle3"]
