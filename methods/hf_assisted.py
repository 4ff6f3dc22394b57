"""Hugging Face's assisted generation (``assistant_model``) as a peer of ``speculative_sampling``.

The same draft model and draft-length policy, in the library's own loop (Leviathan et al. 2023; at
temperature > 0 the library draws its drafts and applies the ratio test).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from transformers import GenerationConfig

from methods.parts.draft_lm import read_draft_card
from methods.parts.hf_peer import HFPeer
from methods.parts.parameters import Parameters, count
from specbench.models.facade import ModelCard, Target
from specbench.models.load import load_model


@dataclass(eq=False)
class HFAssisted(Parameters, HFPeer):
    """The library's assisted generation; conf/method/hf_assisted.yaml describes the parameters."""

    draft: str | None
    length: int = count(5)
    schedule: Literal["heuristic", "constant"] = "heuristic"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._card: ModelCard | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self._card.path,) if self._card else ()

    def check(self, model: ModelCard) -> None:
        self._card = read_draft_card(self.draft, model, None, None)

    def bind(self, target: Target) -> None:
        """Load the draft; no early stop by confidence, which is another policy."""
        super().bind(target)
        assert self._card is not None
        self._draft = load_model(self._card)
        self._draft.generation_config = GenerationConfig()
        self.extra = {"assistant_model": self._draft}

    @contextlib.contextmanager
    def around(self, limit: int, seed: int) -> Iterator[None]:
        """Set the draft's options, whose length the library changes; see ``HFPeer``."""
        config = self._draft.generation_config
        config.num_assistant_tokens = self.length
        config.num_assistant_tokens_schedule = self.schedule
        config.assistant_confidence_threshold = 0.0
        config.is_assistant = True
        with super().around(limit, seed):
            yield
