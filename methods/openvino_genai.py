"""OpenVINO GenAI as a peer: a graph of ours in its format, its own loop, prompt lookup and draft-model speculation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from methods.parts.runtime_peer import DRAFT, LOOKUP, NONE, RuntimePeer
from specbench.method import Emit
from specbench.models.facade import ModelCard

PRECISION = {"float32": "f32", "bfloat16": "bf16"}
STEP_TOKENS = 2048


class OpenvinoGenai(RuntimePeer):
    """OpenVINO GenAI, with the parameters of ``RuntimePeer``."""

    module, package, extra = "openvino_genai", "openvino-genai", "openvino-genai"
    dtypes = tuple(PRECISION)
    speculations = (NONE, LOOKUP, DRAFT)

    def write(self, card: ModelCard, model: Any, folder: Path) -> None:
        """The graph with weights of 32 bits, which the runtime rounds, and the tokenizer, which it asks for."""
        import openvino
        from openvino_tokenizers import convert_tokenizer

        from methods.parts.openvino_graph import build_graph

        openvino.save_model(build_graph(model, card.context), folder / "openvino_model.xml", compress_to_fp16=False)
        for name, part in zip(("", "de"), convert_tokenizer(card.tokenizer, with_detokenizer=True), strict=True):
            openvino.save_model(part, folder / f"openvino_{name}tokenizer.xml")
        model.config.save_pretrained(folder)

    def load(self, runtime: Any, folder: Path, drafting: Path | None) -> None:
        """A pipeline with torch's number of threads and a cache of the model's precision, by default 8 bits."""
        options = self.options()
        speculation: dict[str, Any] = {"prompt_lookup": True} if self.speculation == LOOKUP else {}
        if drafting is not None:
            speculation["draft_model"] = runtime.draft_model(str(drafting), "CPU", **options)
        if not speculation:
            speculation["ATTENTION_BACKEND"] = "SDPA"  # the faster one for one request without drafts
        self._model = runtime.LLMPipeline(str(folder), runtime.Tokenizer(str(folder)), "CPU", **options, **speculation)
        config = self._config = self.make_config(runtime)
        if self.speculation != NONE:
            config.num_assistant_tokens = self.num_draft
        if self.speculation == LOOKUP:
            config.max_ngram_size = self.max_ngram
        self._runtime = runtime

    def options(self) -> dict[str, Any]:
        """Of the CPU: torch's number of threads, numbers of the model's own kind."""
        precision = PRECISION[self.dtype]
        return {
            "INFERENCE_NUM_THREADS": self.threads,
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
        }

    def make_config(self, runtime: Any) -> Any:
        """Greedy, to the model's own end."""
        config = runtime.GenerationConfig()
        config.do_sample, config.apply_chat_template = False, False
        config.stop_token_ids = set(self.eos)
        return config

    def run(self, prompt: Sequence[int], limit: int, emit: Emit) -> None:
        """One call, which reports the tokens of every step; how many were drafted it does not say."""
        import openvino

        runtime, ended = self._runtime, False

        def report(ids: int | list[int]) -> Any:
            nonlocal ended
            ended = ended or emit(ids if isinstance(ids, list) else [ids])
            return runtime.StreamingStatus.STOP if ended else runtime.StreamingStatus.RUNNING

        class Streamer(runtime.StreamerBase):  # type: ignore[name-defined]
            def write(self, ids: int | list[int]) -> Any:
                return report(ids)

            def end(self) -> None:
                """Nothing is buffered."""

        self._config.max_new_tokens = limit
        found = self._model.generate(openvino.Tensor(np.array([prompt], np.int64)), self._config, Streamer())
        if self.speculation == DRAFT:
            self._stats = {"draft_tokens_accepted": float(found.extended_perf_metrics.get_num_accepted_tokens())}


class OpenvinoBatches(OpenvinoGenai):
    """Its continuous batching, for requests that share forwards: timed next to a batch of ours, never in a run."""

    def load(self, runtime: Any, folder: Path, drafting: Path | None) -> None:
        """A pipeline whose step may read ``STEP_TOKENS`` tokens."""
        scheduler = runtime.SchedulerConfig()
        scheduler.max_num_batched_tokens, scheduler.cache_size, scheduler.enable_prefix_caching = STEP_TOKENS, 1, False
        self._model = runtime.ContinuousBatchingPipeline(
            str(folder), runtime.Tokenizer(str(folder)), scheduler, "CPU", **self.options()
        )
        self._config = self.make_config(runtime)

    def answer(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Greedy answers of ``tokens`` each."""
        import openvino

        self._config.max_new_tokens, self._config.ignore_eos = tokens, True
        given = [openvino.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        found = self._model.generate(given, [self._config] * len(prompts))
        return [list(each.m_generation_ids[0]) for each in found]
