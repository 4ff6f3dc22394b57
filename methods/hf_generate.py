"""Hugging Face ``generate`` as a peer: the library's own loop, cache and masks, timed and counted by the harness.

The papers' denominator. Its speed beside vanilla's says what the library's loop costs; its ids must be vanilla's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from specbench.method import Peer
from specbench.target.facade import Target


class _Report(StoppingCriteria):
    """Hands every iteration's new ids to the harness."""

    def __init__(self, prompt_length: int, emit: Callable[[Sequence[int]], bool]) -> None:
        self._seen, self._emit = prompt_length, emit

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        new = input_ids[0, self._seen :].tolist()
        self._seen += len(new)
        return torch.tensor([self._emit(new)], device=input_ids.device)


class HFGenerate(Peer):
    """Greedy at temperature 0, else sampling with the request's temperature, top-k and top-p."""

    def bind(self, target: Target) -> None:
        """Keep the model; the generation config is our own, so that no default of its repository leaks in."""
        self._model, self._device = target.model, target.device
        law: Any = target.law
        eos = sorted(target.eos)
        drawing: dict[str, Any] = {"do_sample": False}
        if law is not None:
            drawing = {"do_sample": True, "temperature": law.temperature, "top_k": law.top_k, "top_p": law.top_p}
        self._options = {
            "eos_token_id": eos or None,
            "pad_token_id": eos[0] if eos else 0,
            "use_cache": True,
            **drawing,
        }

    def decode(self, prompt: Sequence[int], limit: int, seed: int, emit: Callable[[Sequence[int]], bool]) -> None:
        """One call of ``generate``."""
        ids = torch.tensor([list(prompt)], device=self._device)
        config = GenerationConfig(max_new_tokens=limit, **self._options)
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                generation_config=config,
                stopping_criteria=StoppingCriteriaList([_Report(len(prompt), emit)]),
            )
