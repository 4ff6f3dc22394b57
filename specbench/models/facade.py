"""The target as methods see it: its shape, its embedding and head, and the request's sampling, but
not its cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.models.widen import Widening
from specbench.types import InputError

NOWHERE = Path(os.devnull)


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model before its weights are loaded."""

    name: str  # for tables and directories
    path: str  # folder, hub id or ``random``
    config: Any  # the library's config object
    tokenizer: Any  # the library's tokenizer
    context: int  # [tokens] limit of prompt and answer
    eos: frozenset[int]  # ids that end an answer
    dtype: str
    device: str
    warnings: tuple[str, ...] = ()
    widening: Widening | None = None  # of the model in ``path`` to ``config``

    @property
    def vocab_size(self) -> int:
        """Width of the logits, padding included."""
        return int(self.config.get_text_config().vocab_size)


@dataclass(frozen=True, slots=True)
class Target:
    """The target that ``Method.bind`` gets. ``model`` is for peers with their own loop; None for a
    replay.

    sampling: (rows, V) raw logits -> (rows, V) probabilities of the request; None at temperature 0.
    asked: the names of the calls that read weights, if they are noted. log: a file for the output
    of programs that the method starts, in the run's folder; it may not exist.
    """

    card: ModelCard
    model: Any
    max_nodes: int
    sampling: Callable[[Tensor], Tensor] | None
    # of drafts, the engine's; a draft model has it too if the kernels are right for it
    attention: str = "sdpa"
    asked: list[str] | None = None
    log: Path = NOWHERE

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        return self.card.vocab_size

    @property
    def hidden_size(self) -> int:
        """The width D of hidden states."""
        return int(self.card.config.get_text_config().hidden_size)

    @property
    def layers(self) -> int:
        """The number of layers L."""
        return int(self.card.config.get_text_config().num_hidden_layers)

    @property
    def eos(self) -> frozenset[int]:
        """Ids that end an answer."""
        return self.card.eos

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        return self._weights().dtype

    @property
    def device(self) -> torch.device:
        """The device of token ids: the input embedding's."""
        return (
            self.model.get_input_embeddings().weight.device
            if self.model is not None
            else torch.device("cpu")
        )

    def _weights(self, call: str = "") -> Any:
        if self.asked is not None and call:
            self.asked.append(call)
        if self.model is None:
            raise InputError(
                "needs the target's weights, and a replay has only recorded tokens; choose a model"
            )
        return self.model

    @torch.inference_mode()
    def embed(self, ids: Tensor) -> Tensor:
        """Embed (rows,) token ids -> (rows, D)."""
        return self._weights("embed").get_input_embeddings()(ids)

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """Compute the (rows, V) logits of (rows, D) states after the final norm."""
        return self._weights("head").get_output_embeddings()(hidden)

    @torch.inference_mode()
    def logits(self, ids: Tensor) -> Tensor:
        """Read (rows, T) sequences, each from an empty cache -> (rows, V) logits after the last
        token.
        """
        return self._weights("logits")(input_ids=ids, use_cache=False, logits_to_keep=1).logits[
            :, -1
        ]
