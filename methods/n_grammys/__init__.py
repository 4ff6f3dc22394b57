"""N-Grammys: the method is in ``method``, what only it uses in the other modules."""

from methods.n_grammys.method import NGrammys

__all__ = ["NGrammys"]
