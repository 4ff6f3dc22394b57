"""The columns of a result: ``RESULT`` declares each figure once, with its formula and how and where
it is printed.

summary.csv, the tables, the terminal, the page, the heatmaps and the definitions are made from this
list. A figure that does not apply is blank (NaN), never 0 or 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from specbench import stats
from specbench.records.record import CONTROL, DRAFTER_PHASES, PHASES, VANILLA
from specbench.report.frames.cases import Cases
from specbench.report.frames.facts import Facts
from specbench.report.frames.predict import Prediction
from specbench.report.frames.trials import BLANK, Values, ratio
from specbench.report.label import format_count, format_milliseconds, format_rate, format_share
from specbench.report.table import KEYS, Heading
from specbench.stats import Estimate


@dataclass(frozen=True, slots=True)
class Scope:
    """The cases of one method in one category, which the formulas of ``RESULT`` read.

    cases: its own that succeeded; vanilla, papers: the baselines' in the same category. drafts: the
    method proposed a node somewhere in the run. retimed: of the A/A control. estimates: the figures
    that have an interval.
    """

    facts: Facts
    method: str
    cases: Cases
    vanilla: Cases
    papers: Cases
    errors: int
    drafts: bool
    prediction: Prediction | None = None
    retimed: Estimate | None = None
    estimates: Mapping[str, Estimate] = field(default_factory=dict)

    @property
    def predicted(self) -> Cases:
        """The cases that have a prediction."""
        return self.cases.where(~np.isnan(self.cases["method_ms"]))

    @property
    def judged(self) -> Cases:
        """The cases whose output was compared with vanilla's."""
        return self.cases.where(self.cases["judged"])

    def resampled(self) -> Iterator[tuple[str, tuple[Values, ...]]]:
        """(figure, its columns) as ``stats.estimates`` takes them."""
        yield "mat", (self.cases["emitted"], self.cases["steps"])
        if self.facts.timed and self.retimed is None:
            yield "speedup", _paired(self.vanilla, self.cases)
        if self.prediction is not None:
            rows = self.predicted
            yield (
                "predicted_speedup",
                (rows["vanilla_ms"], rows["emitted"], rows["method_ms"], rows["emitted"]),
            )


def _paired(baseline: Cases, cases: Cases) -> tuple[Values, ...]:
    """Columns of the speedup over the cases that both finished."""
    ours, theirs = cases.paired(baseline)
    return theirs["time_s"], theirs["tokens"], ours["time_s"], ours["tokens"]


def _speedup(scope: Scope) -> Estimate:
    found = scope.retimed or scope.estimates["speedup"]
    # 1 by definition; cases that slow each other are no sample
    if scope.method == VANILLA or scope.facts.load:
        return Estimate(found.value, None, None, 0)
    return found


def _decode_speedup(scope: Scope) -> float:
    """The speedup without prefills, for comparison with a prediction, which has decode steps
    only.
    """
    ours, theirs = scope.cases.paired(scope.vanilla)
    spent, before = (
        ratio(each["decode_time_s"].sum(), each["decode_tokens"].sum()) for each in (ours, theirs)
    )
    return ratio(before, spent)


def _efficiency(scope: Scope) -> float:
    rows = scope.predicted
    measured = _decode_speedup(scope) if scope.prediction and scope.prediction.own else BLANK
    return ratio(measured, ratio(rows["vanilla_ideal_ms"].sum(), rows["ideal_ms"].sum()))


def _has_phase(phase: str, scope: Scope) -> bool:
    """Returns whether a case recorded the phase; of a replayed target only a drafter's times are
    real.
    """
    known = not np.isnan(scope.cases[f"{phase}_s"]).all()
    return known and (scope.facts.timed or phase in DRAFTER_PHASES)


def _close_steps(scope: Scope) -> float:
    counted = scope.judged.where(~np.isnan(scope.judged["close_steps"]))
    return ratio(counted["close_steps"].sum(), counted["steps"].sum())


def _accepts(scope: Scope) -> bool:
    """Returns whether acceptance is known: not if drafts come from a model's results along recorded
    answers.
    """
    return scope.method not in scope.facts.unaccepted


def _timed(scope: Scope) -> bool:
    return _accepts(scope) and (scope.retimed is not None or "speedup" in scope.estimates)


def _claimed(scope: Scope) -> bool:
    """A speedup may be claimed: a model was timed, and not driven along recorded answers."""
    return _timed(scope) and not scope.facts.time_only


def _time_only(scope: Scope) -> bool:
    return _timed(scope) and scope.facts.time_only


def _predicted(scope: Scope) -> bool:
    found = scope.estimates.get("predicted_speedup")
    return _accepts(scope) and found is not None and found.count > 0


def _reports_drafts(scope: Scope) -> bool:
    """A peer, which has its own loop, may not report what it proposes."""
    return scope.drafts or scope.method not in scope.facts.peers


def _drafts(scope: Scope) -> bool:
    return scope.drafts and scope.method not in (VANILLA, CONTROL)


def _judged(scope: Scope) -> bool:
    return len(scope.judged) > 0


def _judged_greedy(scope: Scope) -> bool:
    return _judged(scope) and not scope.facts.temperature > 0


def _speedup_hf(scope: Scope) -> float:
    return stats.estimates([_paired(scope.papers, scope.cases)], resamples=0)[0].value


def _milliseconds(facts: Facts) -> float:
    return 1e3


def _price_of_second(facts: Facts) -> float:
    """Of a million tokens that take a second each."""
    return BLANK if facts.price is None else 1e6 * facts.price / 3600


def _compute_of_token(facts: Facts) -> float:
    return BLANK if facts.parameters is None else facts.parameters * 1e-9


@dataclass(frozen=True, slots=True)
class Sums:
    """A formula: the sum of one column over that of another, blank without a whole.

    less: a column that is subtracted from the part. unit: what the quotient is multiplied with.
    partial: a case may lack the part, and then adds 0 to it.
    """

    part: str
    whole: str
    less: str = ""
    unit: Callable[[Facts], float] = lambda facts: 1.0
    partial: bool = False

    def columns(self, cases: Cases) -> tuple[Values, Values]:
        """Returns (C,) the part and (C,) the whole of each case."""
        part = cases[self.part]
        if self.less:
            part = part - cases[self.less]
        return np.nan_to_num(part) if self.partial else part, cases[self.whole]

    def __call__(self, scope: Scope) -> float:
        """The figure of a scope's cases."""
        part, whole = self.columns(scope.cases)
        return self.unit(scope.facts) * ratio(part.sum(), whole.sum())


@dataclass(frozen=True, slots=True)
class Column(Heading):
    """A figure of a result: title, name (``figure``), format and formula.

    value: the formula, blank if ``applies`` is false; an ``Estimate`` fills NAME, NAME_low and
    NAME_high if ``interval`` is set. Without a value it is made for printing alone
    (``with_drafting``) and is not in summary.csv. sums: the two sums of which the figure is the
    quotient, so that it can be resampled by case; None if it is another kind of figure. baseline:
    the method whose quotient is divided by this method's, '' if the figure is the quotient. better:
    1, -1 or 0, as more is better, less is better, or neither. caption: its explanation below a
    table.
    """

    value: Callable[[Scope], float | str | Estimate] | None = None
    applies: Callable[[Scope], bool] = lambda scope: True
    interval: bool = False
    better: int = 1
    caption: str = ""
    sums: Sums | None = None
    baseline: str = ""

    def __post_init__(self) -> None:
        if self.value is None and self.sums is not None:
            object.__setattr__(self, "value", self.sums)

    @property
    def clocked(self) -> bool:
        """Whether the figure is made of times or energy."""
        read = (self.sums.part, self.sums.whole) if self.sums else ()
        return self.figure == "efficiency" or any(
            name.endswith("_s") or name == "energy_j" for name in read
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The figure's columns in summary.csv."""
        spread = (f"{self.figure}_low", f"{self.figure}_high") if self.interval else ()
        return (self.figure, *spread) if self.value else ()

    def fill(self, scope: Scope) -> dict[str, float | str]:
        """Name -> value of a row."""
        if self.value is None or not self.applies(scope):
            return dict.fromkeys(self.names, BLANK)
        found = self.value(scope)
        values = (found.value, *found.bounds) if isinstance(found, Estimate) else [found]
        return dict(zip(self.names, values, strict=True))


PAPERS_BASELINE = "hf_generate"  # the denominator of most papers' speedups
_MICRO = "\N{MICRO SIGN}s"
_TIME_ONLY = (
    "Speedup (time only): real forwards along recorded answers, whose accepted lengths were"
    " replayed; no speedup is claimed, and a method that drafts from what the model computes has"
    " its time a step alone."
)
_DRAFTING = "Drafting: the drafter's own time a step. The target was replayed and has no times."
_PREDICTED = "Predicted: modelled, decode steps only, from the tokens fed and a latency profile."
_EFFICIENCY = "Efficiency: measured decode speedup over the one predicted without any host time."
_TIME = Sums("time_s", "tokens")  # of a token
RESULT = (
    Column("Cases", "cases", format_count, value=lambda scope: len(scope.cases), better=0),
    Column(
        "Tokens",
        "tokens",
        format_count,
        value=lambda scope: int(scope.cases["all_tokens"].sum()),
        better=0,
    ),
    Column(
        "Steps",
        "steps",
        format_count,
        value=lambda scope: int(scope.cases["steps"].sum()),
        better=0,
    ),
    Column(
        "MAT",
        "mat",
        value=lambda scope: scope.estimates["mat"],
        applies=_accepts,
        interval=True,
        bold=True,
        sums=Sums("emitted", "steps"),
        caption="MAT: tokens per decode step.",
    ),
    Column(
        "Nodes",
        "nodes",
        format_count,
        value=lambda scope: float(scope.facts.nodes[scope.method]),
        applies=lambda scope: scope.method in scope.facts.nodes,
        better=0,
        caption="Nodes: the most that a draft may have in this run; 0 is plain decoding.",
    ),
    Column(
        "Tokens/s",
        "tokens_per_s",
        format_rate,
        sums=Sums("tokens", "time_s"),
        applies=_timed,
        bold=True,
    ),
    Column(
        "Decode tokens/s",
        "decode_tokens_per_s",
        format_rate,
        sums=Sums("decode_tokens", "decode_time_s"),
        applies=_timed,
        bold=True,
    ),
    Column(
        "Speedup",
        "speedup",
        value=_speedup,
        applies=_claimed,
        interval=True,
        bold=True,
        sums=_TIME,
        baseline=VANILLA,
        caption="Speedup: time per token, vanilla over method, paired by case.",
    ),
    Column(
        "Speedup over HF",
        "speedup_hf",
        value=_speedup_hf,
        applies=_claimed,
        bold=True,
        sums=_TIME,
        baseline=PAPERS_BASELINE,
    ),
    Column(
        "Decode speedup",
        "decode_speedup",
        value=_decode_speedup,
        applies=_claimed,
        sums=Sums("decode_time_s", "decode_tokens"),
        baseline=VANILLA,
    ),
    Column(
        "Predicted (modelled)",
        "predicted_speedup",
        value=lambda scope: scope.estimates["predicted_speedup"],
        applies=_predicted,
        interval=True,
        bold=True,
        caption=_PREDICTED,
    ),
    Column("Efficiency", "efficiency", value=_efficiency, applies=_predicted, caption=_EFFICIENCY),
    Column(
        "Cost per million",
        "cost_per_million",
        applies=_claimed,
        better=-1,
        sums=Sums("time_s", "tokens", unit=_price_of_second),
        caption="Cost: of a million tokens at the price of an hour.",
    ),
    Column(
        "Joules per token",
        "joules_per_token",
        sums=Sums("energy_j", "all_tokens"),
        applies=_claimed,
        better=-1,
        caption="Joules per token: of the GPUs in use, prefill and idling included.",
    ),
    Column(
        "Speedup (time only)",
        "time_only_speedup",
        value=_speedup,
        applies=_time_only,
        interval=True,
        bold=True,
        sums=_TIME,
        baseline=VANILLA,
        caption=_TIME_ONLY,
    ),
    Column(
        "Step ms",
        "time_only_step_ms",
        format_milliseconds,
        sums=Sums("decode_time_s", "steps", unit=_milliseconds),
        applies=lambda scope: scope.facts.time_only,
        better=-1,
    ),
    Column("In loops", "loop_share", format_share, sums=Sums("repeated", "all_tokens"), better=-1),
    Column(
        "MAT outside loops",
        "mat_outside_loops",
        sums=Sums("fresh_emitted", "fresh_steps"),
        applies=_accepts,
    ),
    Column(
        "Acceptance",
        "acceptance_rate",
        format_share,
        bold=True,
        sums=Sums("emitted", "proposed", less="steps"),
        applies=lambda scope: _drafts(scope) and _accepts(scope),
    ),
    Column(
        "Draft rate",
        "draft_rate",
        format_share,
        sums=Sums("drafted_steps", "steps"),
        applies=_drafts,
        better=0,
    ),
    Column("Mean draft", "mean_draft", sums=Sums("proposed", "steps"), applies=_drafts, better=0),
    Column(
        "Tokens fed", "tokens_fed", sums=Sums("fed", "steps"), applies=_reports_drafts, better=-1
    ),
    Column("Tokens fed", "fed", caption="Tokens fed: root and draft, a step."),
    Column(f"Drafting {_MICRO}", "drafting_us", format_rate, caption=_DRAFTING),
    Column(
        "Target compute",
        "target_compute",
        applies=_reports_drafts,
        better=-1,
        sums=Sums("fed", "steps", unit=_compute_of_token),
    ),
    *(
        Column(
            f"{phase.capitalize()} ms",
            f"{phase}_ms",
            format_milliseconds,
            better=-1,
            applies=functools.partial(_has_phase, phase),
            sums=Sums(f"{phase}_s", "steps", unit=_milliseconds, partial=True),
        )
        for phase in PHASES
    ),
    *(
        Column(f"{phase.capitalize()} {_MICRO}", f"{phase}_us", format_rate)
        for phase in DRAFTER_PHASES
    ),
    Column(
        "Prefill ms",
        "prefill_ms",
        format_milliseconds,
        better=-1,
        sums=Sums("prefill_s", "turns", unit=_milliseconds),
        applies=lambda scope: scope.facts.timed,
    ),
    Column(
        "State bytes",
        "state_bytes",
        format_count,
        value=lambda scope: float(scope.cases["state_bytes"].max()),
        applies=lambda scope: scope.method not in scope.facts.peers and len(scope.cases) > 0,
        better=-1,
    ),
    Column(
        "Lossless",
        "lossless",
        format_share,
        value=lambda scope: float(scope.judged["within"].mean()),
        applies=_judged_greedy,
    ),
    Column(
        "Equal",
        "equal",
        format_share,
        value=lambda scope: float(scope.judged["equal"].mean()),
        applies=_judged,
    ),
    Column(
        "Violations",
        "violations",
        format_count,
        value=lambda scope: float(scope.judged["violations"].sum()),
        applies=_judged_greedy,
        better=-1,
    ),
    Column("Close steps", "close_steps", format_share, value=_close_steps, applies=_judged_greedy),
    Column("Errors", "errors", format_count, value=lambda scope: scope.errors, better=-1),
    Column(
        "Load",
        "load",
        str,
        value=lambda scope: scope.facts.arrivals and f"each request, {scope.facts.arrivals}",
    ),
)
COLUMN = {column.figure: column for column in RESULT}
COLUMNS = (*KEYS, *(name for column in RESULT for name in column.names))  # of summary.csv
_OVERALL = (
    *(
        "cases",
        "mat",
        "nodes",
        "tokens_per_s",
        "decode_tokens_per_s",
        "speedup",
        "speedup_hf",
        "time_only_speedup",
    ),
    *(
        "time_only_step_ms",
        "predicted_speedup",
        "efficiency",
        "cost_per_million",
        "joules_per_token",
    ),
    *("acceptance_rate", "fed", "drafting_us", "lossless", "errors"),
)
_STEPS = (
    "steps",
    "tokens",
    "loop_share",
    "draft_rate",
    "mean_draft",
    "tokens_fed",
    *(f"{phase}_ms" for phase in PHASES),
)
_REST = (*(f"{phase}_us" for phase in DRAFTER_PHASES), "prefill_ms", "state_bytes")
OVERALL_COLUMNS = tuple(COLUMN[name] for name in _OVERALL)  # of the overall table
STEP_COLUMNS = tuple(COLUMN[name] for name in (*_STEPS, *_REST))  # of the table of a mean step
