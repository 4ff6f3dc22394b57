"""EAGLE-1, -2 and -3, P-EAGLE and native MTP: in ``eagle`` and, for MTP, in ``mtp``."""

from methods.eagle.eagle import Eagle, Eagle3, PEagle
from methods.eagle.mtp import Mtp
