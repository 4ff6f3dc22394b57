"""ONNX Runtime GenAI as a peer: its model builder's graph, its own loop, its n-gram and draft-model speculation.

One call brings one token; a round's further tokens wait in a buffer. Its statistics say how many, so they are read once
a round, and a round's tokens are reported together.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from methods.parts.parameters import count
from methods.parts.runtime_peer import BUT_PHI, DRAFT, LOOKUP, NONE, RuntimePeer, saved_checkpoint
from specbench.method import Emit
from specbench.models.facade import ModelCard

MOST = 16  # tokens of a draft and of an n-gram, the runtime's limits
CONFIG = "genai_config.json"
COUNTED = ("rounds", "draft_tokens_proposed", "draft_tokens_accepted", "target_forward_passes")


@dataclass(eq=False)
class OrtGenai(RuntimePeer):
    """ONNX Runtime GenAI; an n-gram of the runtime is the suffix that is looked up and the token after it."""

    module, package, extra = "onnxruntime_genai", "onnxruntime-genai", "ort-genai"
    speculations = (NONE, LOOKUP, DRAFT)
    families, scalings = BUT_PHI, ("default", "llama3")  # it ignores others

    num_draft: int = count(8, high=MOST)
    max_ngram: int = count(3, high=MOST - 1)

    def write(self, card: ModelCard, model: Any, folder: Path) -> None:
        """By the runtime's model builder."""
        path = list(sys.path)  # which the builder changes
        try:
            from onnxruntime_genai.models.builder import create_model, parse_extra_options

            with saved_checkpoint(card, model) as checkpoint, tempfile.TemporaryDirectory() as scratch:
                given = ("", checkpoint, str(folder), "fp32", "cpu", scratch)
                create_model(*given, **parse_extra_options(*given, []))
        finally:
            sys.path[:] = path

    def load(self, runtime: Any, folder: Path, drafting: Path | None) -> None:
        """Sessions with torch's number of threads; the draft model is a part of the target's configuration."""
        self._runtime = runtime
        threads = {"intra_op_num_threads": self.threads, "inter_op_num_threads": 1}
        changes: dict[str, Any] = {"decoder": {"session_options": threads}}
        if drafting is not None:
            decoder = json.loads((drafting / CONFIG).read_text(encoding="utf-8"))["model"]["decoder"]
            decoder["filename"] = os.path.relpath(drafting / decoder["filename"], folder)
            changes["draft"] = decoder | {"session_options": threads}
        config = runtime.Config(str(folder))
        config.overlay(json.dumps({"model": changes}))
        self._model = runtime.Model(config)

    def run(self, prompt: Sequence[int], limit: int, emit: Emit) -> None:
        """A generator a request."""
        params = self._runtime.GeneratorParams(self._model)
        params.set_search_options(max_length=len(prompt) + limit, do_sample=False)
        if self.speculation != NONE:
            looked_up = {"ngram_size": self.max_ngram + 1} if self.speculation == LOOKUP else {}
            params.set_speculative_options(max_draft_tokens=self.num_draft, **looked_up)
        generator = self._runtime.Generator(self._model, params)
        generator.append_tokens(np.array([prompt], dtype=np.int32))
        proposed, done = 0, False
        while not done and not generator.is_done():
            ids, before = [_next_token(generator)], proposed
            if self.speculation != NONE:  # take the further tokens of the round, up to the limit
                counted = generator.get_speculative_stats()
                while len(ids) <= counted["tokens_buffered"] and not generator.is_done():
                    ids.append(_next_token(generator))
                proposed = int(counted["draft_tokens_proposed"])
            done = emit(ids, proposed - before)
        if self.speculation != NONE:
            counted = generator.get_speculative_stats()
            self._stats = {name: float(counted[name]) for name in COUNTED}


def _next_token(generator: Any) -> int:
    generator.generate_next_token()
    return int(generator.get_next_tokens()[0])
