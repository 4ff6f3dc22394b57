"""REST: the method is in ``method``, what only it uses in the other modules."""

from methods.rest.method import Rest

__all__ = ["Rest"]
