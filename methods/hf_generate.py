"""Hugging Face ``generate`` without drafts, as a peer: the papers' denominator.

Its speed beside vanilla's is the cost of the library's loop; its ids must be vanilla's.
"""

from __future__ import annotations

from methods.parts.hf_peer import HFPeer


class HFGenerate(HFPeer):
    """No parameters: what it decodes with is the run's."""
