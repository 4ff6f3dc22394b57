"""Speculative sampling with a draft model (Leviathan et al. 2023; Chen et al. 2023): a small model
drafts a chain.

At temperature 0 the chain is the draft's argmax; above, each token is drawn from the draft's own
distribution, which the ratio test needs.
"""

from __future__ import annotations

from methods.parts.draft_method import ChainMethod


class SpeculativeSampling(ChainMethod):
    """A draft model of its own; the parameters are those of ``ChainMethod``."""
