"""Spec-Bench's formulas over answers: what its ``evaluation/speed.py`` and leaderboard print, oddities included.

* tokens/s of a method: mean over questions of (sum of new_tokens / sum of wall_time), turns summed. Short answers weigh
  as much as long ones.
* tokens/s of the baseline: the same, but tokens are counted by tokenising its text again, without BOS and without EOS.
* speedup: the first over the second, a ratio of means. Questions are not paired.
* mean accepted tokens: mean over all steps of all questions. Vanilla = 1.
* several runs: the mean of their tokens/s and speedups, with the sample standard deviation; accept lengths pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from specbench.records.answers import FAILED, Answer
from specbench.records.record import OVERALL

_BLANK = float("nan")


Score = dict[str, float]  # one method on one task, as Spec-Bench counts


def score(
    method: Sequence[Sequence[Answer]], baseline: Sequence[Sequence[Answer]], count: Callable[[str], int]
) -> dict[str, Score]:
    """Task -> score, overall last. method, baseline: the answers of each run. count: text -> tokens.

    questions: of the method in one run. speedup_std: over the runs.
    """
    ours = [_rates(answers, _counted) for answers in method]
    theirs = [_rates(answers, _retokenised(count)) for answers in baseline]
    names = dict.fromkeys(answer.task for answers in method for answer in answers)
    return {task: _score(task, method, ours, theirs) for task in (*names, OVERALL)}


def doubts(name: str, method: Sequence[Answer], baseline: Sequence[Answer]) -> list[str]:
    """What affects Spec-Bench's figures and is not visible in them."""
    found = []
    missing = len({answer.question_id for answer in baseline} ^ {answer.question_id for answer in method})
    if missing:
        found.append(
            f"{name}: {missing} questions are in only one of method ({len(method)}) and baseline ({len(baseline)}); "
            "the formulas do not pair them"
        )
    repeated = len(method) - len({answer.question_id for answer in method})
    if repeated:
        found.append(f"{name}: {repeated} lines answer a question again; every line counts, as in speed.py")
    if any(answer.misspelt for answer in method):
        found.append(
            f"{name}: its accept lengths are read from the key 'accept_lengths:', as the adapter of REST has it"
        )
    failed = sum(any(turn.text == FAILED for turn in answer.turns) for answer in method)
    if failed:
        found.append(f"{name}: {failed} answers say {FAILED}, whose counts are those of the turn before")
    if any(answer.new_tokens != sum(answer.accept_lengths) for answer in method):
        found.append(
            f"{name}: accept lengths do not add up to its new tokens: its adapter does not count the prefill's forward "
            "as a step, or counts tokens that it then cut"
        )
    return found


def _counted(answer: Answer) -> int:
    return answer.new_tokens


def _retokenised(count: Callable[[str], int]) -> Callable[[Answer], int]:
    return lambda answer: sum(count(turn.text) for turn in answer.turns)


def _rates(answers: Sequence[Answer], tokens: Callable[[Answer], int]) -> Mapping[str, list[float]]:
    """[tokens/s] of each question, by task and overall."""
    rates: dict[str, list[float]] = {OVERALL: []}
    for answer in answers:
        rate = tokens(answer) / answer.wall_time_s if answer.wall_time_s > 0 else _BLANK
        rates.setdefault(answer.task, []).append(rate)
        rates[OVERALL].append(rate)
    return rates


def _score(
    task: str,
    method: Sequence[Sequence[Answer]],
    ours: Sequence[Mapping[str, list[float]]],
    theirs: Sequence[Mapping[str, list[float]]],
) -> Score:
    speeds = [_mean(rates.get(task, [])) for rates in ours]
    base = [_mean(rates.get(task, [])) for rates in theirs]
    if len(base) == 1:  # one baseline file for several runs of a method
        base = base * len(speeds)
    ratios = [speed / reference if reference else _BLANK for speed, reference in zip(speeds, base, strict=True)]
    answers = [answer for run in method for answer in run if task in (OVERALL, answer.task)]
    lengths = [length for answer in answers for length in answer.accept_lengths]
    return {
        "questions": len(ours[0].get(task, [])),
        "tokens_per_s": _mean(speeds),
        "baseline_tokens_per_s": _mean(base),
        "speedup": _mean(ratios),
        "speedup_std": float(np.std(ratios, ddof=1)) if len(ratios) > 1 else _BLANK,
        "mat": _mean(lengths),
    }


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else _BLANK
