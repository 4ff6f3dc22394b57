"""EAGLE-1, -2 and -3 and P-EAGLE: the class is in ``method``, its parts are in the other modules."""

from methods.eagle.method import Eagle, Eagle3
from methods.eagle.parallel import PEagle

__all__ = ["Eagle", "Eagle3", "PEagle"]
