"""N-Grammys: the class is in ``method``, its parts are in the other modules."""

from methods.n_grammys.method import NGrammys

__all__ = ["NGrammys"]
