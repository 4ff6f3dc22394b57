"""Hugging Face ``generate`` as a peer: the loop, cache and masks of transformers, reported forward
by forward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from specbench.method import Emit, Peer
from specbench.models.facade import Target


class _Reporter(BaseStreamer):
    """The library streams the prompt first, then every iteration's new ids."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self._prompt_seen:
            self._emit(value.reshape(-1).tolist())
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is buffered."""


class HFPeer(Peer):
    """Greedy at temperature 0, else sampling with the request's temperature, top-k and top-p.

    The generation config is our own, so that no default of the model's repository (a repetition
    penalty, a temperature) leaks into the comparison. ``extra`` goes to ``generate`` itself.
    """

    extra: dict[str, Any]

    def bind(self, target: Target) -> None:
        """Keep the model and build the options."""
        self.extra = {}
        self._model, self._device = target.model, target.device
        # generate() fills whatever our config leaves open from the model's own, a repetition
        # penalty for instance.
        self._model.generation_config = GenerationConfig()
        sampling: Any = target.sampling
        eos = sorted(target.eos)
        drawing: dict[str, Any] = {"do_sample": False}
        if sampling is not None:
            drawing = {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "top_p": sampling.top_p,
            }
        self.options = {
            "eos_token_id": eos or None,
            "pad_token_id": eos[0] if eos else 0,
            "use_cache": True,
            **drawing,
        }

    @contextlib.contextmanager
    def around(self, limit: int, seed: int) -> Iterator[None]:
        """Make the generation config and seed the library's generators, whose states are
        restored.
        """
        self._config = GenerationConfig(max_new_tokens=limit, **self.options)
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield

    def decode(self, prompt: Sequence[int], limit: int, seed: int, emit: Emit) -> None:
        """One call of ``generate``."""
        ids = torch.tensor([list(prompt)], device=self._device)
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=self._config,
            streamer=_Reporter(emit),
            **self.extra,
        )
