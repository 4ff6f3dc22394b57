"""CTranslate2 as a peer: its converter's model and its own loop. It has no speculation for generators."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from methods.parts.runtime_peer import BUT_PHI, RuntimePeer, saved_checkpoint
from specbench.method import Emit
from specbench.models.facade import ModelCard

MODEL = "model"


class CTranslate2(RuntimePeer):
    """CTranslate2 with the run's settings; it has no parameters."""

    families, scalings = BUT_PHI, ("default", "linear")  # its llama3 has other angles
    module = package = extra = "ctranslate2"

    def __init__(self) -> None:
        super().__init__()

    def write(self, card: ModelCard, model: Any, folder: Path) -> None:
        """By the runtime's converter for transformers."""
        from ctranslate2.converters import TransformersConverter

        with saved_checkpoint(card, model) as checkpoint:
            TransformersConverter(checkpoint).convert(str(folder / MODEL), quantization=card.dtype)

    def load(self, runtime: Any, folder: Path, drafting: Path | None) -> None:
        """A prompt is given as texts of tokens, which the converter numbers."""
        place = folder / MODEL
        self._texts = json.loads((place / "vocabulary.json").read_text(encoding="utf-8"))
        self._model = runtime.Generator(
            str(place), device="cpu", compute_type=self.dtype, inter_threads=1, intra_threads=self.threads
        )

    def run(self, prompt: Sequence[int], limit: int, emit: Emit) -> None:
        """One call, which reports every token."""
        self._model.generate_batch(
            [[self._texts[token] for token in prompt]],
            max_length=limit,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token=self.eos,
            return_end_token=True,
            callback=lambda step: emit([step.token_id]),
        )
