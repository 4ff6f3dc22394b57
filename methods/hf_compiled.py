"""Hugging Face ``generate`` on a static cache with torch.compile, as a peer: the fastest set-up of
transformers.

One cache serves every request, so that there is one shape and one compilation, paid for in
``bind``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError
from transformers import StaticCache
from transformers.generation.configuration_utils import CompileConfig

from methods.parts.hf_peer import HFPeer
from methods.parts.parameters import Parameters, count
from specbench.method import Emit
from specbench.models.facade import Target
from specbench.models.family import MOST_CONTEXT
from specbench.types import CaseError, InputError

# the first results from the prompt, uncompiled; the others from the compiled forward
WARM_TOKENS = 4


@dataclass(eq=False)
class HFCompiled(Parameters, HFPeer):
    """The library's compiled ``generate``; conf/method/hf_compiled.yaml describes the
    parameters.
    """

    length: int = count(2048, low=WARM_TOKENS + 1, high=MOST_CONTEXT)
    compile: bool = True

    def bind(self, target: Target) -> None:
        """Make the cache and compile. Raises InputError where torch.compile does not work on this
        machine.
        """
        super().bind(target)
        self._slots = min(self.length, target.card.context)
        self._cache = StaticCache(config=target.card.config, max_cache_len=self._slots)
        self.extra = {"past_key_values": self._cache}
        self.options["disable_compile"] = not self.compile
        if self.compile:
            config: Any = CompileConfig()
            config._compile_all_devices = True  # else the library compiles on accelerators only
            self.options["compile_config"] = config
        options, self.options = self.options, self.options | {"eos_token_id": None}
        try:
            with self.around(WARM_TOKENS, 0):
                self.decode([0], WARM_TOKENS, 0, lambda ids: False)
        except (TorchDynamoException, InductorError) as error:
            reason = next(
                (line for line in str(error).splitlines() if line.strip()), type(error).__name__
            )
            raise InputError(
                f"compile=true: torch.compile failed ({reason}); expected a working compiler (a C++"
                " one on a CPU), or compile=false, the static cache alone"
            ) from error
        finally:
            self.options = options

    @torch.inference_mode()
    def decode(self, prompt: Sequence[int], limit: int, seed: int, emit: Emit) -> None:
        """One call of ``generate`` on the emptied cache. Raises CaseError for a request beyond its
        slots.
        """
        if len(prompt) + limit > self._slots:
            raise CaseError(
                f"prompt of {len(prompt)} tokens and {limit} to come; expected at most the"
                f" {self._slots} slots of the static cache (raise method.hf_compiled.length, or"
                " lower decode.max_new_tokens)"
            )
        self._cache.reset()
        super().decode(prompt, limit, seed, emit)

    def close(self) -> None:
        """Drop what was compiled: the compiler gives up on a function it has compiled for many
        models.
        """
        if self.compile:
            torch._dynamo.reset()
