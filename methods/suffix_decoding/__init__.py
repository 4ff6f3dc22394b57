"""SuffixDecoding: the class is in ``method``, its parts are in the other modules."""

from methods.suffix_decoding.method import SuffixDecoding

__all__ = ["SuffixDecoding"]
