"""Hugging Face ``generate`` without drafts, as a peer: the baseline of most papers' speedups.

Its speed relative to vanilla's shows the cost of the library's loop; its ids must be vanilla's.
"""

from __future__ import annotations

from methods.parts.hf_peer import HFPeer


class HFGenerate(HFPeer):
    """Hugging Face ``generate`` with the run's settings; it has no parameters."""
