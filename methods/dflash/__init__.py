"""DFlash and DSpark: the class is in ``method``, its parts are in the other modules."""

from methods.dflash.method import DFlash

__all__ = ["DFlash"]
