"""Hugging Face's prompt lookup decoding (``prompt_lookup_num_tokens``) as a peer of ``pld``.

Same idea (Saxena 2023), the library's own matching, verification and cache; the default lengths are ``pld``'s, so that
the two rows differ in runtime and matching rule only.
"""

from __future__ import annotations

from methods.parts.hf_peer import HFPeer
from specbench.models.facade import Target
from specbench.types import require_count


class HFPromptLookup(HFPeer):
    """The library's prompt lookup; conf/method/hf_prompt_lookup.yaml describes the parameters."""

    def __init__(self, num_draft: int = 10, max_ngram: int = 3) -> None:
        require_count("num_draft", num_draft)
        require_count("max_ngram", max_ngram)
        self.num_draft, self.max_ngram = num_draft, max_ngram

    def bind(self, target: Target) -> None:
        """Ask the library for its prompt lookup."""
        super().bind(target)
        self.options |= {"prompt_lookup_num_tokens": self.num_draft, "max_matching_ngram_size": self.max_ngram}
