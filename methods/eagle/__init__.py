"""EAGLE-1, -2 and -3, P-EAGLE and native MTP: the class is in ``method``, its parts are in the other modules."""

from methods.eagle.eagle import Eagle, Eagle3, PEagle
from methods.eagle.mtp import Mtp

__all__ = ["Eagle", "Eagle3", "Mtp", "PEagle"]
