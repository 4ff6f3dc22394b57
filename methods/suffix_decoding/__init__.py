"""SuffixDecoding: the method is in ``method``, what only it uses in the other modules."""

from methods.suffix_decoding.method import SuffixDecoding

__all__ = ["SuffixDecoding"]
