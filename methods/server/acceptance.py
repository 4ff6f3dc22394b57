"""Brings a server's reports on its drafts into one form and checks that they agree with the emitted
tokens.

Three accounts of a request: its own figures, the difference of the server's counters, and the sizes
of the streamed chunks. None is trusted alone: engines count the bonus token or drop the steps
without a draft, chunks have several steps under load, and counters include other clients' requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from methods.server.replies import MOST_COUNTED, SHOWN
from specbench.types import MOST, CaseError

REQUEST, COUNTERS, CHUNKS = "request", "counters", "chunks"
PER_POSITION = "num_accepted_tokens_per_pos"
COUNTED = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
SAMPLE = re.compile(
    r"^(\w+):spec_decode_(num_drafts|num_draft_tokens|num_accepted_tokens(?:_per_pos)?)(?:_total)?"
    r"(?:\{([^}]*)\})?\s+(\S+)",
    re.MULTILINE,
)
POSITION = re.compile(r'position="(\d+)"')
# How a server that draws acceptance from a table reports it: vLLM, SGLang, llama.cpp.
SYNTHETIC = re.compile(
    r"rejection_sample_method\W{1,8}synthetic|synthetic_acceptance_(?:length|rates?)\W{1,4}[\d.]"
    r"|simulate_acc_len\W{1,4}(?!0\b)[\d.]|spec.synth.len\W{1,4}[1-9]",
    re.IGNORECASE,
)

Counters = dict[str, float]


@dataclass(frozen=True, slots=True)
class DraftReport:
    """A request's drafts as the server counts them. Accepted tokens are without the bonus token of
    each step.

    drafts: steps that had one, None = not reported. drafted: [tokens]. histogram: steps by accepted
    tokens. by_step: (accepted, drafted) of each step with a draft. per_position: accepted, by place
    in the draft.
    """

    source: str
    accepted: int
    drafts: int | None = None
    drafted: int | None = None
    histogram: tuple[int, ...] = ()
    by_step: tuple[tuple[int, int], ...] = ()
    per_position: tuple[int, ...] = ()

    @property
    def longest(self) -> int:
        """Accepted tokens that one step may have at most, as far as the server reports."""
        known = (
            len(self.histogram) - 1,
            len(self.per_position),
            *(drafted for _, drafted in self.by_step),
        )
        return max([0, *known])


@dataclass(frozen=True, slots=True)
class Account:
    """The steps that a record gets: (emitted, proposed) each. source: whose account. complaints:
    what disagrees.
    """

    steps: tuple[tuple[int, int], ...]
    source: str
    complaints: tuple[str, ...] = ()


def parse_counters(text: str, where: str = "/metrics") -> Counters:
    """Sums over the labels of a Prometheus page, of vLLM, LMDeploy and llama.cpp alike; positions
    apart.

    where: the page's address, for the CaseError about the first sample that is not a count.
    """
    found: Counters = {}
    for sample in SAMPLE.finditer(text):
        _, name, labels, value = sample.groups()
        place = POSITION.search(labels or "")
        try:
            count, number = float(value), int(place[1]) if place else 0
        except ValueError:  # also of thousands of digits
            count, number = -1.0, 0
        if not 0 <= count <= MOST_COUNTED or number >= MOST:
            expected = f"a count from 0 to {MOST_COUNTED}, of a position below {MOST}"
            raise CaseError(
                f"{where}: {sample[0][:SHOWN]}; expected {expected}: correct the server"
            )
        key = f"{name}.{place[1]}" if place else name
        found[key] = found.get(key, 0.0) + count
    return found


def report_from_counters(
    before: Mapping[str, float], after: Mapping[str, float]
) -> DraftReport | None:
    """The difference of two readings; None where there are no counters or the server was restarted
    in between.
    """
    if not all(name in after for name in COUNTED[1:]):
        return None
    grown = {name: round(value - before.get(name, 0.0)) for name, value in after.items()}
    if any(value < 0 for value in grown.values()):
        return None
    places = sorted(
        int(name.partition(".")[2]) for name in grown if name.startswith(f"{PER_POSITION}.")
    )
    return DraftReport(
        COUNTERS,
        accepted=grown[COUNTED[2]],
        drafts=grown.get(COUNTED[0]),
        drafted=grown[COUNTED[1]],
        per_position=tuple(grown[f"{PER_POSITION}.{place}"] for place in places),
    )


def reconcile(count: int, sizes: Sequence[int] | None, reports: Sequence[DraftReport]) -> Account:
    """The steps after the first chunk, from the count that the emitted tokens confirm.

    count: tokens after the first chunk. sizes: of these chunks, None where a chunk is not a step.
    reports: the request's own first. An account may count tokens after the answer's end, of its
    last step: fewer than one draft.
    """
    complaints = list(_differences(reports))
    if sizes is None:
        fitting = [each for each in reports if each.accepted <= count]
        complaints += [
            f"{_name(each)} for {count} emitted" for each in reports if each not in fitting
        ]
        if not fitting:  # without drafts a token is a step
            return Account(((1, 0),) * count, CHUNKS, tuple(complaints))
        kept = fitting[0]
        drafts = (
            each.drafts
            for each in fitting
            if (each.accepted, each.drafted) == (kept.accepted, kept.drafted)
        )
        kept = replace(kept, drafts=next((each for each in drafts if each is not None), None))
        return Account(_steps_of(count, kept), kept.source, tuple(complaints))
    extra = count - len(sizes)
    for each in reports:
        beyond = max(each.longest, *sizes, 1) if sizes else each.longest
        behind = each.accepted + (each.drafts or 0) - count  # tokens after the answer's end
        joined = (each.drafts or 0) > len(sizes) + 1 and 0 <= behind <= each.longest
        if each.accepted < extra or joined:
            complaints.append(f"{_name(each)}, by chunks {extra}: a chunk has several steps")
            return Account(_steps_of(count, each), each.source, tuple(complaints))
        if each.accepted <= extra + beyond and (each.drafts or 0) <= len(sizes) + 1:
            drafted = [drafted for _, drafted in each.by_step]
            if len(drafted) != len(sizes):
                drafted = _spread(each.drafted or 0, len(sizes))
            return Account(tuple(zip(sizes, drafted, strict=True)), each.source, tuple(complaints))
        complaints.append(
            f"{_name(each)}, by chunks {extra} in {len(sizes)}: the figure counts something else"
        )
    return Account(tuple((size, 0) for size in sizes), CHUNKS, tuple(complaints))


def _name(report: DraftReport) -> str:
    drafts = "" if report.drafts is None else f" in {report.drafts} steps"
    return f"accepted by {report.source} {report.accepted}{drafts}"


def _differences(reports: Sequence[DraftReport]) -> Sequence[str]:
    """Of the first account from the others, in the figures that both have; and of an account from
    itself.
    """
    found = []
    for each in reports:
        if (
            each.histogram
            and (total := sum(j * n for j, n in enumerate(each.histogram))) != each.accepted
        ):
            found.append(f"{_name(each)}, by its histogram {total}")
        if each.per_position and (total := sum(each.per_position)) != each.accepted:
            found.append(f"{_name(each)}, by its positions {total}")
    for other in reports[1:]:
        mine, theirs = ((each.accepted, each.drafted) for each in (reports[0], other))
        if mine != theirs and None not in (mine[1], theirs[1]):
            found.append(
                f"accepted, drafted by {reports[0].source} {mine}, by {other.source} {theirs}"
            )
    return found


def _steps_of(count: int, report: DraftReport) -> tuple[tuple[int, int], ...]:
    """Steps that add up to ``count``: by the histogram where there is one, else as even as the
    totals allow.

    No engine reports steps without a draft: they are the surplus of tokens. A last step that was
    cut is shorter here.
    """
    if report.by_step:
        lengths = [1 + accepted for accepted, _ in report.by_step[:count]]
    elif report.histogram:
        every = (
            1 + accepted for accepted, steps in enumerate(report.histogram) for _ in range(steps)
        )
        lengths = list(islice(every, count))  # no more, whatever the server reports
    elif report.drafts is not None:
        lengths = _spread(min(count, report.accepted + report.drafts), min(count, report.drafts))
    else:
        lengths = _spread(count, max(1, count - report.accepted) if count else 0)
    while lengths and sum(lengths) > count:
        over = sum(lengths) - count
        last = lengths.pop()
        if last > over:
            lengths.append(last - over)
    lengths += [1] * (count - sum(lengths))
    drafted = [drafted for _, drafted in report.by_step] or _spread(
        report.drafted or 0, len(lengths)
    )
    drafted = (drafted + [0] * len(lengths))[: len(lengths)]
    return tuple(zip(lengths, drafted, strict=True))


def _spread(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` that differ by one at most, the larger first."""
    if not parts:
        return []
    each, rest = divmod(total, parts)
    return [each + (place < rest) for place in range(parts)]


# Name of a figure -> its samples on a page of vLLM, SGLang, LMDeploy, TensorRT-LLM, llama.cpp or
# NVIDIA's DCGM exporter, and how those of several engines or GPUs are joined. docs/servers.md has
# the units.
GAUGES: Mapping[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "running": (
        "(?:vllm|lmdeploy):num_requests_running|sglang:num_running_reqs|trtllm_num_requests_running"
        "|llamacpp:requests_processing",
        sum,
    ),
    "waiting": (
        "(?:vllm|lmdeploy):num_requests_waiting|sglang:num_queue_reqs|trtllm_num_requests_waiting"
        "|llamacpp:requests_deferred",
        sum,
    ),
    "kv_cache": (
        "vllm:kv_cache_usage_perc|lmdeploy:gpu_cache_usage_perc|sglang:token_usage|trtllm_kv_cache_utilization"
        "|llamacpp:kv_cache_usage_ratio",
        max,
    ),
    "gpu_busy": ("DCGM_FI_DEV_GPU_UTIL", lambda values: sum(values) / len(values) / 100),
    "gpu_power_w": ("DCGM_FI_DEV_POWER_USAGE", sum),
}
_VALUE = r"(?:\{[^}\n]*\})?[ \t]+(\d{1,20}(?:\.\d{0,20})?(?:[eE][+-]?\d{1,3})?)(?=\s|$)"
_SAMPLES = {
    name: re.compile(f"^(?:{names}){_VALUE}", re.MULTILINE) for name, (names, _) in GAUGES.items()
}


def read_gauges(page: str) -> dict[str, float]:
    """Read the figures of a page of metrics in Prometheus' format.

    Returns:
        Name -> value; a figure without a sample, or with one that is not a number from 0 to 2^31 -
        1, is left out.
    """
    found: dict[str, float] = {}
    for name, (_, join) in GAUGES.items():
        values = [float(sample[1]) for sample in _SAMPLES[name].finditer(page)]
        if values and max(values) < MOST:
            found[name] = join(values)
    return found
