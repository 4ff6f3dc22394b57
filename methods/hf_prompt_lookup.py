"""Hugging Face's prompt lookup decoding (``prompt_lookup_num_tokens``) as a peer of ``pld``.

Same idea (Saxena 2023), the library's own matching, verification and cache; the default lengths are
``pld``'s, so that the two rows differ in runtime and matching rule only.
"""

from __future__ import annotations

from dataclasses import dataclass

from methods.parts.hf_peer import HFPeer
from methods.parts.parameters import Parameters, count
from specbench.models.facade import Target


@dataclass(eq=False)
class HFPromptLookup(Parameters, HFPeer):
    """The library's prompt lookup; conf/method/hf_prompt_lookup.yaml describes the parameters."""

    num_draft: int = count(10)
    max_ngram: int = count(3)

    def bind(self, target: Target) -> None:
        super().bind(target)
        self.options |= {
            "prompt_lookup_num_tokens": self.num_draft,
            "max_matching_ngram_size": self.max_ngram,
        }
