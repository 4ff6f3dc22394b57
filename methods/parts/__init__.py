"""Parts that several methods share: draft models, trained heads, trees, indices of token sequences,
runtimes.
"""
