"""The choice of a method and its parameters for a GPU, a model and a load: candidates, and the best
of them.

Recorded steps are priced by a latency profile, as in a report. Candidates are the methods of runs,
or, of a trace, the drafters that need no weights at a few settings each. They are chosen on one
half of the cases and tested on the other. Drafting counts with its median, once for every request:
a server whose drafters run in parallel is nearer to the column without. Both columns are of the
same cases and steps.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pandas as pd

from specbench.advise.schedule import Schedule
from specbench.advise.tune import gain_of, speedup_of, spell
from specbench.names import near
from specbench.profile import Fit, Profile, find_pair, read_profile
from specbench.profile.analytic import error_of
from specbench.profile.profile import PUBLISHED
from specbench.report import read_findings
from specbench.report.frames.predict import Prediction, describe_leads, predict, with_drafting
from specbench.report.frames.reported import ReportedRun, find_remarks, is_busy
from specbench.report.label import label
from specbench.report.locate import chosen_profile, find_runs
from specbench.runs.execution import execute
from specbench.runs.job import Job, job_of
from specbench.stats import MIN_CASES, Estimate
from specbench.types import InputError

# Of a trace: what is replayed, the first setting of every method in one run, then the second.
POINTS: dict[str, dict[str, tuple[int, ...]]] = {
    "pld": {"num_draft": (1, 3, 5, 10, 16)},
    "sam": {"n_predicts": (4, 8, 16, 40, 60)},
    "suffix_decoding_local": {"num_draft": (2, 4, 8, 16, 32)},
    "cacheback_no_frozen": {
        "total_draft_length": (4, 8, 16, 48, 96),
        "chaining_reserve": (0, 0, 4, 8, 16),
    },
    "n_grammys_trie": {"k": (2, 2, 4, 6, 10), "w": (4, 6, 6, 10, 10)},
}
FIXED = ("method.n_grammys_trie.strategy=context", "measure=replay", "measure.warmup=0")
FREE = Profile("", "", "", "", PUBLISHED, Fit(1.0, 0.0, 0.0, 0.0), "")  # every forward as long
COSTS = (0.75, 1.25)  # of a token fed, under which the choice is made again


@dataclass(frozen=True, slots=True)
class Candidate:
    """A method with its parameters. name: as a report prints it."""

    name: str
    entry: ReportedRun
    method: str

    def cases(self, profile: Profile, requests: int, drafting: bool) -> pd.DataFrame:
        """One row per case under this number of concurrent requests, by name; drafting at its
        median, or free.
        """
        others = self.entry.trials.methods.keys() - {self.method}
        busy = is_busy(self.entry.run, self.entry.facts, self.entry.trials)
        found = predict(self.entry.trials, others, profile.shared(requests), busy).cases[
            self.method
        ]
        return with_drafting(found, requests if drafting else 0)


@dataclass(frozen=True, slots=True)
class Advice:
    """The best candidate under a load. speedup: measured on the cases that did not take part in the
    choice.

    ties: candidates that cannot be distinguished from it. next_best: of the others, with the ratio.
    """

    requests: int
    best: Candidate
    speedup: Estimate
    ties: tuple[str, ...]
    next_best: str


def candidates_of(directories: Sequence[Path]) -> list[Candidate]:
    """Every method of these runs whose drafts are recorded. Raises InputError if none has them."""
    findings = read_findings(find_runs(directories))
    found = [
        Candidate(label(method, entry.variants.get(method, "")), entry, method)
        for entry in findings.reported
        for method in predict(entry.trials, entry.facts.peers | entry.facts.unaccepted, FREE).cases
        if method not in entry.facts.lossy
    ]
    if not found:
        raise InputError(
            "no method of these runs has recorded drafts; expected a run with one, such as"
            " method=[pld]"
        )
    if len(places := {entry.place for entry in findings.reported}) > 1:
        named = " and ".join(f"{model} on {suite}" for model, suite in sorted(places))
        raise InputError(f"got runs of {named}; expected those of one model and suite")
    return found


def choose(
    found: Sequence[Candidate], profile: Profile, requests: int, drafting: bool = True
) -> Advice | None:
    """The best on every second case, evaluated on the others; None if none is faster than
    vanilla.
    """
    priced = [each.cases(profile, requests, drafting) for each in found]
    names = priced[0].index
    names = names[names.isin(set(names).intersection(*(cases.index for cases in priced)))]
    tuning, held_out = names[::2], names[1::2] if len(names) > 1 else names
    speeds = [speedup_of(cases.loc[tuning]).value for cases in priced]
    order = sorted(range(len(found)), key=lambda place: -speeds[place])
    best = order[0]
    if speeds[best] <= 1:
        return None
    ratios = {
        place: gain_of(priced[place].loc[held_out], priced[best].loc[held_out])
        for place in order[1:]
    }
    tied = [place for place, ratio in ratios.items() if ratio.low is not None and ratio.low <= 1]
    rest = next((place for place in ratios if place not in tied), None)
    behind = (
        ""
        if rest is None
        else f"{found[rest].name}; the best is {spell(ratios[rest])} times as fast"
    )
    ties = tuple(found[place].name for place in tied)
    return Advice(requests, found[best], speedup_of(priced[best].loc[held_out]), ties, behind)


def answer(found: Sequence[Candidate], profile: Profile, loads: Sequence[int]) -> Iterator[str]:
    """The lines of an answer: of each load the best, with and without drafting, and what would
    change it.
    """
    for requests in loads:
        with_drafting, without = (
            choose(found, profile, requests, drafting) for drafting in (True, False)
        )
        at = f"{requests} at once"
        if with_drafting is None:
            yield f"{at}: none is faster than vanilla; decode without a draft"
        else:
            best = with_drafting
            yield f"{at}: {best.best.name}, {spell(best.speedup)} times vanilla"
            if best.ties:
                yield f"    not distinguished from: {', '.join(best.ties)}"
            if best.next_best:
                yield f"    next: {best.next_best}"
            if len(found) > 1:
                cases = {each.name: each.cases(profile, requests, True) for each in found}
                yield f"    {describe_leads(cases)}"
        moved = _name(without) != _name(with_drafting)
        if without is not None:
            mark = "  * drafting decides" if moved else ""
            yield f"    without drafting: {without.best.name}, {spell(without.speedup)}{mark}"
        fit = profile.surface
        for factor in COSTS if isinstance(fit, Fit) else ():
            assert isinstance(fit, Fit)
            dearer = replace(profile, surface=replace(fit, per_fed_us=factor * fit.per_fed_us))
            other = _name(choose(found, dearer, requests))
            if other != _name(with_drafting):
                yield f"    if a token fed costs {factor:.0%} of that: {other}"


def _name(found: Advice | None) -> str:
    return found.best.name if found else "none is faster than vanilla"


def replay_points(trace: Path, overrides: Sequence[str], folder: Path) -> list[Path]:
    """The runs of ``POINTS`` over recorded answers. Raises InputError."""
    methods = f"method=[{','.join(POINTS)}]"
    job: Job | None = None  # of which the next ones take the trace
    runs, count = [], max(len(values) for keys in POINTS.values() for values in keys.values())
    begun = time.monotonic()
    for number in range(count):
        left_s = (time.monotonic() - begun) / number * (count - number) if number else 0.0
        about = f", about {timedelta(seconds=round(left_s))} left" if number else ""
        print(
            f"replaying {', '.join(POINTS)}: settings {number + 1} of {count}{about}",
            file=sys.stderr,
            flush=True,
        )
        point = [
            f"method.{name}.{key}={values[number]}"
            for name, keys in POINTS.items()
            for key, values in keys.items()
        ]
        job = job_of([f"model.trace={trace}", methods, *FIXED, *point, *overrides], job)
        execute(job, folder / str(number), lambda *_: None)
        runs.append(folder / str(number))
    return runs


def find_candidates(source: Path, overrides: Sequence[str], folder: Path) -> list[Candidate]:
    """The candidates of a run, of a sweep's directory, or of a trace, which is replayed. Raises
    InputError.

    folder: of the runs of a trace, which their candidates read.
    """
    return candidates_of([source] if source.is_dir() else replay_points(source, overrides, folder))


def advise(found: Sequence[Candidate], profile: Profile, loads: Sequence[int]) -> Iterator[str]:
    """The lines of ``specbench choose``."""
    yield from _about(found, profile)
    yield from answer(found, profile, loads)


def _about(found: Sequence[Candidate], profile: Profile) -> Iterator[str]:
    facts, cases = found[0].entry.facts, len(found[0].entry.trials.cases)
    few = "" if cases >= 2 * MIN_CASES else f"; no intervals under {2 * MIN_CASES} cases"
    yield (
        f"{facts.model} on {facts.suite}, {cases} cases, {len(found)} candidates; half choose, half"
        f" judge{few}"
    )
    yield f"candidates: {', '.join(each.name for each in found)}"
    yield f"modelled on {profile.label}"
    known = chosen_profile()
    published = read_profile(known) if known else None
    if published is not None and published.kind == PUBLISHED and published is not profile:
        pair = find_pair("h100-8b")
        assert pair is not None
        errors = ", ".join(
            f"{error_of(pair, published, fed, 500):+.0%} at {fed}" for fed in (1, 64)
        )
        yield (
            "the analytic profile of H100 and 8B against the published fit, by tokens fed:"
            f" {errors}"
        )
    busy = any(is_busy(each.entry.run, each.entry.facts, each.entry.trials) for each in found)
    how = "by the processor's time, as other processes competed" if busy else "as it was timed"
    yield f"drafting {how} on the machine of the records"
    priced = [replace(each.entry, prediction=Prediction(profile, {})) for each in found]
    yield from find_remarks(priced)


def chain_length(candidate: Candidate) -> int | None:
    """[tokens] The longest recorded draft; None if a draft was no chain, or none was proposed."""
    longest = 0
    for fed, depth in candidate.entry.trials.of(candidate.method).turns.steps.read("fed", "depth"):
        if (fed != depth + 1).any():
            return None
        longest = max(longest, int(depth.max(initial=0)))
    return longest or None


def make_schedule(
    found: Sequence[Candidate], profile: Profile, loads: Sequence[int], method: str = ""
) -> Schedule:
    """Returns the best length of one method at each load, as ``choose`` finds it; 0 if its own
    speedup is not above 1.

    A length that rises with the load although the shorter one ties with it stays.

    Args:
        found: Candidates; those whose drafts are no chains are left out.
        profile: The cost of a forward.
        loads: Concurrent requests, ascending.
        method: Its name; '' for that of the best candidate at the smallest load at which drafting
            pays.

    Raises:
        InputError: No load of 1, no such method, no chain, or a method that is faster than vanilla
        at no load.
    """
    if loads[0] != 1:
        raise InputError(
            f"--load {','.join(map(str, loads))}: a schedule begins at batch size 1; expected"
            " --load 1,..."
        )
    lengths = {id(each): length for each in found if (length := chain_length(each))}
    chains = [each for each in found if id(each) in lengths]
    if not chains:
        raise InputError(
            "--export: the methods of these runs draft trees or nothing; expected one that drafts"
            " chains"
        )
    names = dict.fromkeys(each.method for each in chains)
    if method and method not in names:
        raise InputError(
            f"--method {method}: no method with recorded chains; {near(method, [*names])}"
        )
    method = method or next(
        (best.best.method for load in loads if (best := _paying(chains, profile, load))), ""
    )
    own = [each for each in chains if each.method == method]
    chosen: dict[int, int] = {}
    facts = own[0].entry.facts if own else chains[0].entry.facts
    origin = [f"{facts.model} on {facts.suite}", f"modelled on {profile.label}"]
    before: float = math.inf
    for load in loads if own else ():
        best = _paying(own, profile, load)
        length = lengths[id(best.best)] if best else 0
        if best and length > before:
            tied = [lengths[id(each)] for each in own if each.name in best.ties]
            tied += [0] if best.speedup.low is not None and best.speedup.low <= 1 else []
            length = max((each for each in tied if each <= before), default=length)
        chosen[load] = before = length
        reason = (
            f"the best is {best.best.name}, {spell(best.speedup)} times vanilla"
            if best
            else "none pays"
        )
        origin.append(f"{load} requests: {length} tokens; {reason}")
    origin.append(
        "batch sizes between these are not modelled and have the length of the one below; list more"
        " loads"
    )
    if not any(chosen.values()):
        raise InputError(
            f"--export: {method or 'no method'} is faster than vanilla at no load; decode without a"
            " draft"
        )
    return Schedule(method, chosen, tuple(origin))


def _paying(found: Sequence[Candidate], profile: Profile, load: int) -> Advice | None:
    """The best, if it is faster than vanilla also on the cases that did not take part in the
    choice.
    """
    best = choose(found, profile, load)
    return best if best and best.speedup.value > 1 else None
