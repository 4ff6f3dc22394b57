"""Decoding: the loops of one request and of several, verification, sampling, budgets and lengths of
drafts.
"""
