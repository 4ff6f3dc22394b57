r"""Checks whether an answer has its reference's result: a number (GSM8K, MGSM and others) or an
expression (MATH).

A reference has a number if it is one, or ends in ``#### 18``, ``The answer is 18.`` or
``\boxed{18}``: the notations of GSM8K (Cobbe et al. 2021), of worked examples (Wei et al. 2022) and
of MATH (Hendrycks et al. 2021). An answer's number is the one after its last such mark, or else its
last one, as most harnesses take it for GSM8K. An expression in a reference's last ``\boxed`` is
compared by math-verify (the extra ``math``); without it such an answer is not checked, which the
run's warnings state. Of a reference that is a list of texts, all must be in the answer (RULER's
string match, Hsieh et al. 2024).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache
from types import ModuleType

from specbench.types import Case

# digits of any script, and what groups them
_NUMBER = r"(?:(?<![\w)])[-\u2212])?\d+(?:[.,'\u2019\u00a0\u202f]\d+)*"
_MARK = re.compile(rf"(?:####|\\boxed\{{|answer is:?)\s*\$?\s*({_NUMBER})", re.IGNORECASE)
_ALONE = re.compile(rf"\$?\s*({_NUMBER})")
_BOXED = "\\boxed"
_ENDS = "}.!%$ "  # after the number of a reference
_GROUPED = re.compile(r"[-\u2212]?\d{1,3}(?:[.,'\u2019\u00a0\u202f]\d{3})+")


def is_right(case: Case, answer: str) -> bool | None:
    """Returns whether the answer of the last turn has a reference's result; None if no reference
    has one.
    """
    last = case.references if len(case.turns) == 1 else case.references[-1:]  # one a turn
    if needed := next((each for each in last if isinstance(each, list)), None):
        return all(str(text).lower() in answer.lower() for text in needed)
    given = [str(each) for each in last]
    due = {value for reference in given for value in _reference(reference)}
    boxed = [reference for reference in given if _BOXED in reference]
    if due:
        numbers = _MARK.findall(answer) or re.findall(_NUMBER, answer)
        if numbers and not due.isdisjoint(_readings(numbers[-1])):
            return True
    if boxed and (library := _math_verify()):
        return any(_equals(library, reference, answer) for reference in boxed)
    return False if due else None


def count_unread(cases: Sequence[Case]) -> int:
    """Counts the cases with an answer that only math-verify reads; 0 if it is installed."""
    if _math_verify():
        return 0
    return sum(any(_BOXED in str(reference) for reference in case.references) for case in cases)


@cache
def _math_verify() -> ModuleType | None:
    try:
        import math_verify
    except ImportError:
        return None
    return math_verify


def _equals(library: ModuleType, reference: str, answer: str) -> bool:
    """Compares the LaTeX; each step has a time limit, except in a thread, where the library cannot
    interrupt.
    """
    seconds = 5 if threading.current_thread() is threading.main_thread() else None
    latex = [library.LatexExtractionConfig(boxed_match_priority=0)]
    parts = [library.parse(text, latex, parsing_timeout=seconds) for text in (reference, answer)]
    return bool(library.verify(*parts, timeout_seconds=seconds))


def _reference(text: str) -> Iterator[Decimal]:
    text = text.strip().rstrip(_ENDS)
    found = _ALONE.fullmatch(text) or next(
        (mark for mark in _MARK.finditer(text) if mark.end() == len(text)), None
    )
    if found is not None:
        yield from _readings(found[1])


def _readings(number: str) -> Iterator[Decimal]:
    """Reads ``2,125`` both as grouped thousands and as 2.125 of other languages, so that neither is
    wrong.
    """
    plain = number.replace("\u2212", "-")
    if _GROUPED.fullmatch(number) or plain.lstrip("-").isdecimal():
        yield Decimal(re.sub(r"[^\d-]", "", plain))
    whole, mark, rest = plain.rpartition("." if "." in plain else ",")
    if mark:
        yield Decimal(re.sub(r"[^\d-]", "", whole) + "." + rest)
