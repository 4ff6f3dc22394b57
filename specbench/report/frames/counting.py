"""One trace of steps, and the acceptance length and rate that each engine and harness would print
for it.

They disagree on what is a step (with the prefill, without a draft, the last one), on what is
divided by it (emitted tokens, or accepted drafts and one more), and on what is averaged (steps or
requests).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.records.record import TurnRecord

COUNTS = (
    *(
        "record",
        "tokens",
        "emitted",
        "steps",
        "prefills",
        "drafted",
        "accepted",
        "proposed",
        "widest",
    ),
    *("kept_tokens", "kept_steps"),
)
Requests = Mapping[str, NDArray[Any]]
Figure = Callable[[Requests], float]
_BLANK = float("nan")


def first_s(turn: TurnRecord) -> float:
    """[s] until the first token is there."""
    return turn.prefill_s + (turn.step_s[0] if turn.in_prefill and turn.step_s else 0.0)


def kept_lengths(turn: TurnRecord) -> list[int]:
    """Tokens of the chunks of a streamed answer that specdec_bench counts: not a first of one
    token, never the last.

    Source: NVIDIA/Model-Optimizer 1cb88ef, examples/specdec_bench/specdec_bench/metrics/base.py,
    trim_beam_lengths.
    """
    chunks = turn.accept if turn.in_prefill else [1, *turn.accept]
    return chunks[chunks[0] == 1 : -1] or [1]


def drafted_steps(turn: TurnRecord) -> list[tuple[int, int]]:
    """(accepted, proposed) nodes of each step with a draft, in order."""
    return [
        (emitted - 1, nodes)
        for emitted, nodes in zip(turn.accept, turn.proposed, strict=True)
        if nodes
    ]


def count_request(record: int, turn: TurnRecord) -> tuple[int, ...]:
    """``COUNTS`` of a turn; record: its case and round, by number.

    prefills: forwards that are no step. drafted: steps with a draft. widest: nodes of the largest
    draft. kept_*: what specdec_bench counts.
    """
    kept, drafts = kept_lengths(turn), drafted_steps(turn)
    return (
        *(record, len(turn.ids), sum(turn.accept), len(turn.accept), int(not turn.in_prefill)),
        *(
            len(drafts),
            sum(accepted for accepted, _ in drafts),
            sum(turn.proposed),
            max(turn.proposed, default=0),
        ),
        *(sum(kept), len(kept)),
    )


def as_requests(rows: Sequence[int] | NDArray[Any]) -> Requests:
    """Column -> (R,) from ``COUNTS`` of R turns, concatenated."""
    table = np.asarray(rows, dtype=np.int64).reshape(-1, len(COUNTS))
    return dict(zip(COUNTS, table.T, strict=True))


def _over(part: str, *whole: str, plus: float = 0.0) -> Figure:
    """Plus + sum of part / sum of whole, over all requests."""

    def figure(requests: Requests) -> float:
        divisor = sum(int(requests[name].sum()) for name in whole)
        return plus + int(requests[part].sum()) / divisor if divisor else _BLANK

    return figure


def _mean_over(part: str, whole: str, plus: float = 0.0) -> Figure:
    """Mean over the requests that have any of the whole, of plus + part / whole."""

    def figure(requests: Requests) -> float:
        some = requests[whole] > 0
        return (
            float(np.mean(plus + requests[part][some] / requests[whole][some]))
            if some.any()
            else _BLANK
        )

    return figure


def _kept_by_record(requests: Requests) -> float:
    sums = [
        np.bincount(requests["record"], requests[name]) for name in ("kept_tokens", "kept_steps")
    ]
    return float(np.mean(sums[0][sums[1] > 0] / sums[1][sums[1] > 0])) if len(sums[1]) else _BLANK


def _of_full_drafts(requests: Requests) -> float:
    """Every step counts as if its draft was as large as the largest."""
    slots = int(requests["steps"].sum()) * int(requests["widest"].max(initial=0))
    return int(requests["emitted"].sum() - requests["steps"].sum()) / slots if slots else _BLANK


@dataclass(frozen=True, slots=True)
class Definition:
    """How an engine or a harness counts. length, rate: of a method's requests; rate None if it
    prints none.

    length_is, rate_is: in words. source: repository, commit and file, or the pull request.
    """

    name: str
    length: Figure
    length_is: str
    rate: Figure | None
    rate_is: str
    source: str


_PER_DRAFT = _over("accepted", "drafted", plus=1), "1 + accepted / steps with a draft"
_PER_FORWARD = _over("tokens", "steps", "prefills"), "all tokens / (steps + prefills)"
_OF_PROPOSED = _over("accepted", "proposed"), "accepted / proposed"
_BY_REQUEST = _mean_over("accepted", "drafted", plus=1), f"mean over requests of {_PER_DRAFT[1]}"
_NVIDIA = "NVIDIA/Model-Optimizer 1cb88ef `examples/specdec_bench/specdec_bench/metrics/base.py`"
_VLLM = (
    "vllm-project/vllm 016a858 `vllm/v1/spec_decode/metrics.py`, 02cf515"
    " `docs/features/speculative_decoding/"
)
_TRT = (
    "NVIDIA/TensorRT-LLM 00e9b8a `cpp/include/tensorrt_llm/batch_manager/llmRequest.h`, 00026bd"
    " `tensorrt_llm/_torch/"
)
_LISTED = (
    Definition(
        *("specbench", _over("emitted", "steps"), "tokens of steps / steps (MAT)", *_OF_PROPOSED),
        "[section 2](#2-the-columns-of-summarycsv)",
    ),
    Definition("vLLM", *_PER_DRAFT, *_OF_PROPOSED, f"{_VLLM}acceptance_metrics.md`"),
    Definition(
        *("SGLang", _over("tokens", "steps"), "all tokens / steps"),
        *(_of_full_drafts, "accepted / (steps x size of a full draft)"),
        "sgl-project/sglang c60799d `python/sglang/srt/managers/tokenizer_manager.py`; PR 13754, PR"
        " 33518",
    ),
    Definition("TensorRT-LLM", *_PER_FORWARD, *_OF_PROPOSED, f"{_TRT}pyexecutor/sampler.py`"),
    Definition("llama.cpp", *_PER_DRAFT, *_OF_PROPOSED, "ggml-org/llama.cpp PR 24536, PR 27676"),
    Definition(
        "specdec_bench",
        _kept_by_record,
        "mean over questions of tokens / chunks, a first chunk of one token and the last one"
        " left out",
        *(None, ""),
        f"{_NVIDIA}, 55bcd7b `metrics/specbench.py`",
    ),
    Definition(
        *(
            "AIPerf",
            *_BY_REQUEST,
            _mean_over("accepted", "proposed"),
            f"mean over requests of {_OF_PROPOSED[1]}",
        ),
        "ai-dynamo/aiperf 1849cd1 `src/aiperf/metrics/types/spec_decode_metrics.py`",
    ),
    Definition(
        *(
            "SpecForge",
            _mean_over("tokens", "steps"),
            "mean over requests of all tokens / steps",
            None,
            "",
        ),
        "sgl-project/SpecForge `specforge/benchmarks/sglang.py`; vllm-project/vllm issue 42508, PR"
        " 52169",
    ),
    Definition(
        "Spec-Bench", *_PER_FORWARD, None, "", "[section 13](#13-spec-benchs-formulas-and-files)"
    ),
)
DEFINITIONS = {each.name: each for each in _LISTED}


def count_all_ways(requests: Requests) -> list[tuple[str, float, float]]:
    """(definition, acceptance length, acceptance rate) of a method's requests; NaN if it has
    none.
    """
    return [
        (name, each.length(requests), each.rate(requests) if each.rate else _BLANK)
        for name, each in DEFINITIONS.items()
    ]
