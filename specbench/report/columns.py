"""The columns of a result: ``RESULT`` declares each figure once, with its formula and how and where it is printed.

summary.csv, the tables, the terminal, the page, the heatmaps and the definitions are made from this list. A figure that
does not apply is blank (NaN), never 0 or 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from specbench import stats
from specbench.records.record import CONTROL, PHASES, VANILLA
from specbench.report.frames.cases import Cases
from specbench.report.frames.facts import Facts
from specbench.report.frames.predict import Prediction
from specbench.report.frames.trials import BLANK, DRAFTER_PHASES, Values, ratio
from specbench.report.label import format_count, format_microseconds, format_milliseconds, format_rate, format_share
from specbench.report.table import KEYS, Heading
from specbench.stats import Estimate


@dataclass(frozen=True, slots=True)
class Scope:
    """The cases of one method in one category, which the formulas of ``RESULT`` read.

    cases: its own that succeeded; vanilla, papers: the baselines' in the same category. drafts: the method proposed a
    node somewhere in the run. retimed: of the A/A control. estimates: the figures that have an interval.
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

    def share(self, part: str, whole: str) -> float:
        """The sum of one column over the sum of another, blank without a whole."""
        return ratio(self.cases[part].sum(), self.cases[whole].sum())

    def resampled(self) -> Iterator[tuple[str, tuple[Values, ...]]]:
        """(figure, its columns) as ``stats.estimates`` takes them."""
        yield "mat", (self.cases["emitted"], self.cases["steps"])
        if self.facts.timed and self.retimed is None:
            yield "speedup", _paired(self.vanilla, self.cases)
        if self.prediction is not None:
            rows = self.predicted
            yield "predicted_speedup", (rows["vanilla_ms"], rows["emitted"], rows["method_ms"], rows["emitted"])


def _paired(baseline: Cases, cases: Cases) -> tuple[Values, ...]:
    """Columns of the speedup over the cases that both finished."""
    ours, theirs = cases.paired(baseline)
    return theirs["time_s"], theirs["tokens"], ours["time_s"], ours["tokens"]


def _speedup(scope: Scope) -> Estimate:
    found = scope.retimed or scope.estimates["speedup"]
    if scope.method == VANILLA or scope.facts.load:  # 1 by definition; cases that slow each other are no sample
        return Estimate(found.value, None, None, 0)
    return found


def _decode_speedup(scope: Scope) -> float:
    """The speedup without prefills, for comparison with a prediction, which has decode steps only."""
    ours, theirs = scope.cases.paired(scope.vanilla)
    spent, before = (ratio(each["decode_time_s"].sum(), each["decode_tokens"].sum()) for each in (ours, theirs))
    return ratio(before, spent)


def _efficiency(scope: Scope) -> float:
    rows = scope.predicted
    measured = _decode_speedup(scope) if scope.prediction and scope.prediction.own else BLANK
    return ratio(measured, ratio(rows["vanilla_ideal_ms"].sum(), rows["ideal_ms"].sum()))


def _phase_ms(phase: str, scope: Scope) -> float:
    """Mean milliseconds a step, of the cases that recorded it; of a replayed target only a drafter's are real."""
    seconds = scope.cases[f"{phase}_s"]
    if np.isnan(seconds).all() or not (scope.facts.timed or phase in DRAFTER_PHASES):
        return BLANK
    return 1e3 * ratio(float(np.nansum(seconds)), scope.cases["steps"].sum())


def _close_steps(scope: Scope) -> float:
    counted = scope.judged.where(~np.isnan(scope.judged["close_steps"]))
    return ratio(counted["close_steps"].sum(), counted["steps"].sum())


def _always(scope: Scope) -> bool:
    return True


def _accepts(scope: Scope) -> bool:
    """Returns whether acceptance is known: not if drafts come from a model's results along recorded answers."""
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


def _has_state(scope: Scope) -> bool:
    return scope.method not in scope.facts.peers and len(scope.cases) > 0


def _judged(scope: Scope) -> bool:
    return len(scope.judged) > 0


def _judged_greedy(scope: Scope) -> bool:
    return _judged(scope) and not scope.facts.temperature > 0


@dataclass(frozen=True, slots=True)
class Column(Heading):
    """A figure of a result: title, name (``figure``), formula and format.

    value: the formula, blank where ``applies`` does not hold; an ``Estimate`` fills NAME, NAME_low and NAME_high where
    ``interval`` is set. Without a value it is made for printing alone (``with_drafting``) and is not in summary.csv.
    better: 1, -1 or 0, as more is better, less is better, or neither. overall, steps, glossary: its place in the
    overall table, in the table of a mean step and among the definitions, 0 = absent. caption: its explanation below
    a table. definition: in the glossary. terminal: its title in the table of the terminal.
    """

    value: Callable[[Scope], float | str | Estimate] | None = None
    applies: Callable[[Scope], bool] = _always
    interval: bool = False
    better: int = 1
    overall: int = 0
    steps: int = 0
    glossary: int = 0
    caption: str = ""
    definition: str = ""
    terminal: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Its columns in summary.csv."""
        spread = (f"{self.figure}_low", f"{self.figure}_high") if self.interval else ()
        return (self.figure, *spread) if self.value else ()

    def fill(self, scope: Scope) -> dict[str, float | str]:
        """Name -> value of a row."""
        if self.value is None or not self.applies(scope):
            return dict.fromkeys(self.names, BLANK)
        found = self.value(scope)
        return dict(
            zip(self.names, (found.value, *found.bounds) if isinstance(found, Estimate) else [found], strict=True)
        )


RESULT = (
    Column("Cases", "cases", format_count, value=lambda scope: len(scope.cases), better=0, overall=1),
    Column(
        "Tokens",
        "tokens",
        format_count,
        value=lambda scope: int(scope.cases["all_tokens"].sum()),
        better=0,
        steps=2,
        glossary=1,
        definition="Ids that were emitted, the prefill's included, up to and including the first end-of-sequence "
        "token. The harness counts them for every method alike; text is never tokenised again.",
    ),
    Column("Steps", "steps", format_count, value=lambda scope: int(scope.cases["steps"].sum()), better=0, steps=1),
    Column(
        "MAT",
        "mat",
        bold=True,
        value=lambda scope: scope.estimates["mat"],
        applies=_accepts,
        interval=True,
        overall=2,
        glossary=3,
        caption="MAT: tokens per decode step.",
        definition="Mean accepted tokens: tokens emitted by decode steps over decode steps, all steps of all cases "
        "alike. Vanilla is 1. The prefill's token is in neither.",
        terminal="MAT",
    ),
    Column(
        "Tokens/s",
        "tokens_per_s",
        format_rate,
        bold=True,
        value=lambda scope: scope.share("tokens", "time_s"),
        applies=_timed,
        overall=3,
        glossary=4,
        definition="All tokens over all time, prefill included. Decode tokens/s leaves out the prefill's time and "
        "token.",
        terminal="tokens/s",
    ),
    Column(
        "Decode tokens/s",
        "decode_tokens_per_s",
        format_rate,
        bold=True,
        value=lambda scope: scope.share("decode_tokens", "decode_time_s"),
        applies=_timed,
        overall=4,
    ),
    Column(
        "Speedup",
        "speedup",
        bold=True,
        value=_speedup,
        applies=_claimed,
        interval=True,
        overall=5,
        glossary=5,
        caption="Speedup: time per token, vanilla over method, paired by case.",
        definition="Time per token of vanilla over time per token of the method, both summed over the cases that both "
        "finished. Each case ran under both in the same process. With several rounds a case's time is the median "
        "round.",
        terminal="speedup [95 %]",
    ),
    Column(
        "Speedup over HF",
        "speedup_hf",
        bold=True,
        value=lambda scope: stats.estimates([_paired(scope.papers, scope.cases)], resamples=0)[0].value,
        applies=_claimed,
        overall=6,
        glossary=6,
        definition="The same against the library's own generate loop, the denominator of most papers.",
    ),
    Column("Decode speedup", "decode_speedup", value=_decode_speedup, applies=_claimed),
    Column(
        "Predicted (modelled)",
        "predicted_speedup",
        bold=True,
        value=lambda scope: scope.estimates["predicted_speedup"],
        applies=_predicted,
        interval=True,
        overall=9,
        glossary=7,
        caption="Predicted: modelled, decode steps only, from the tokens fed and a latency profile.",
        definition="Never measured: speedup of the decode steps alone, from the recorded tokens fed, the time that a "
        "latency profile gives a forward of so many at that context, and the drafter's own time.",
    ),
    Column(
        "Efficiency",
        "efficiency",
        value=_efficiency,
        applies=_predicted,
        overall=10,
        glossary=9,
        caption="Efficiency: measured decode speedup over the one predicted without any host time.",
        definition="Measured speedup of the decode steps over what the profile's forwards alone would give: what a "
        "method loses to drafting and host time. Above 1 the profile is worse than what the run saw, or it is noise.",
    ),
    Column(
        "Cost per million",
        "cost_per_million",
        value=lambda scope: (
            BLANK if scope.facts.price is None else 1e6 * scope.facts.price / 3600 * scope.share("time_s", "tokens")
        ),
        applies=_claimed,
        better=-1,
        overall=11,
        glossary=10,
        caption="Cost: of a million tokens at the price of an hour.",
        definition="Of a million tokens, prefills included, at measure.price_per_hour.",
    ),
    Column(
        "Joules per token",
        "joules_per_token",
        value=lambda scope: scope.share("energy_j", "all_tokens"),
        applies=_claimed,
        better=-1,
        overall=12,
        glossary=11,
        caption="Joules per token: of the GPUs in use, prefill and idling included.",
        definition="What the GPUs in use took between the start and the end of every request, by the driver's own "
        "counters, over all tokens. Blank where nothing counts it.",
    ),
    Column(
        "Speedup (time only)",
        "time_only_speedup",
        bold=True,
        value=_speedup,
        applies=_time_only,
        interval=True,
        overall=7,
        glossary=8,
        caption="Speedup (time only): real forwards along recorded answers, whose accepted lengths were replayed; no "
        "speedup is claimed, and a method that drafts from what the model computes has its time a step alone.",
        definition="Accepted lengths were replayed: a model, maybe of random weights, was driven along recorded "
        "answers, so a step's time is real and what it emits is the record's. No speedup is claimed. A method that "
        "drafts from what the model computes has its time a step (Step ms) alone.",
        terminal="time only [95 %]",
    ),
    Column(
        "Step ms",
        "time_only_step_ms",
        format_milliseconds,
        value=lambda scope: 1e3 * scope.share("decode_time_s", "steps"),
        applies=lambda scope: scope.facts.time_only,
        better=-1,
        overall=8,
        terminal="step ms",
    ),
    Column(
        "Acceptance",
        "acceptance_rate",
        format_share,
        bold=True,
        value=lambda scope: ratio(
            scope.cases["emitted"].sum() - scope.cases["steps"].sum(), scope.cases["proposed"].sum()
        ),
        applies=lambda scope: _drafts(scope) and _accepts(scope),
        overall=13,
        glossary=18,
        definition="Accepted draft nodes over proposed ones. Blank for vanilla and for methods with their own loop.",
        terminal="accepted",
    ),
    Column(
        "Draft rate",
        "draft_rate",
        format_share,
        value=lambda scope: scope.share("drafted_steps", "steps"),
        applies=_drafts,
        better=0,
        steps=3,
        glossary=21,
        definition="Decode steps with a draft over all decode steps.",
    ),
    Column(
        "Mean draft",
        "mean_draft",
        value=lambda scope: scope.share("proposed", "steps"),
        applies=_drafts,
        better=0,
        steps=4,
    ),
    Column(
        "Tokens fed",
        "tokens_fed",
        value=lambda scope: scope.share("fed", "steps"),
        applies=_reports_drafts,
        better=-1,
        steps=5,
        glossary=22,
        definition="Mean rows a forward of the target: the last token and every node of the draft.",
    ),
    Column("Tokens fed", "fed", overall=14, caption="Tokens fed: root and draft, a step.", terminal="tokens fed"),
    Column(
        "Drafting \N{MICRO SIGN}s",
        "drafting_us",
        format_microseconds,
        overall=15,
        caption="Drafting: the drafter's own time a step. The target was replayed and has no times.",
        terminal="drafting \N{MICRO SIGN}s",
    ),
    Column(
        "Target compute",
        "target_compute",
        value=lambda scope: (
            BLANK if scope.facts.parameters is None else scope.facts.parameters * 1e-9 * scope.share("fed", "steps")
        ),
        applies=_reports_drafts,
    ),
    *(
        Column(
            f"{phase.capitalize()} ms",
            f"{phase}_ms",
            format_milliseconds,
            value=functools.partial(_phase_ms, phase),
            better=-1,
            steps=6,
        )
        for phase in PHASES
    ),
    *(
        Column(f"{phase.capitalize()} \N{MICRO SIGN}s", f"{phase}_us", format_microseconds, steps=7)
        for phase in DRAFTER_PHASES
    ),
    Column(
        "Prefill ms",
        "prefill_ms",
        format_milliseconds,
        value=lambda scope: 1e3 * scope.share("prefill_s", "turns"),
        applies=lambda scope: scope.facts.timed,
        better=-1,
        steps=8,
    ),
    Column(
        "State bytes",
        "state_bytes",
        format_count,
        value=lambda scope: float(scope.cases["state_bytes"].max()),
        applies=_has_state,
        better=-1,
        steps=9,
    ),
    Column(
        "Lossless",
        "lossless",
        format_share,
        value=lambda scope: float(scope.judged["within"].mean()),
        applies=_judged_greedy,
        overall=16,
        glossary=26,
        definition="Cases whose ids equal vanilla's, or where every emitted id, judged with the whole answer in one "
        "forward, was the argmax or tied with it within the tolerance for the dtype. Blank when sampling.",
        terminal="lossless",
    ),
    Column("Equal", "equal", format_share, value=lambda scope: float(scope.judged["equal"].mean()), applies=_judged),
    Column(
        "Violations",
        "violations",
        format_count,
        value=lambda scope: float(scope.judged["violations"].sum()),
        applies=_judged_greedy,
        better=-1,
    ),
    Column("Close steps", "close_steps", format_share, value=_close_steps, applies=_judged_greedy),
    Column(
        "Errors",
        "errors",
        format_count,
        value=lambda scope: scope.errors,
        better=-1,
        overall=17,
        glossary=27,
        definition="Cases that failed. They are left out of the method's figures and of its pairing with vanilla.",
    ),
    Column("Load", "load", str, value=lambda scope: scope.facts.arrivals and f"each request, {scope.facts.arrivals}"),
)
COLUMN = {column.figure: column for column in RESULT}
COLUMNS = (*KEYS, *(name for column in RESULT for name in column.names))  # of summary.csv
OVERALL_COLUMNS = tuple(sorted((column for column in RESULT if column.overall), key=lambda column: column.overall))
STEP_COLUMNS = tuple(sorted((column for column in RESULT if column.steps), key=lambda column: column.steps))
