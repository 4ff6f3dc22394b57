"""EAGLE-1, -2 and -3, P-EAGLE and native MTP: the class is in ``method``, its parts are in the other modules."""

from methods.eagle.method import Eagle, Eagle3
from methods.eagle.mtp import Mtp
from methods.eagle.parallel import PEagle

__all__ = ["Eagle", "Eagle3", "Mtp", "PEagle"]
