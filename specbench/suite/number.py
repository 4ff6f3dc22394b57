r"""Whether an answer ends in the number that its reference ends in: GSM8K, MGSM, any question with such a reference.

A reference has a number if it is one, or ends in ``#### 18``, ``The answer is 18.`` or ``\boxed{18}``: the notations of
GSM8K (Cobbe et al. 2021), of worked examples (Wei et al. 2022) and of MATH (Hendrycks et al. 2021). An answer's number
is the one behind its last such mark, or else its last one, as most harnesses take it for GSM8K.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from specbench.types import Case

_NUMBER = r"(?:(?<![\w)])[-\u2212])?\d+(?:[.,'\u2019\u00a0\u202f]\d+)*"  # digits of any script, and what groups them
_MARK = re.compile(rf"(?:####|\\boxed\{{|answer is:?)\s*\$?\s*({_NUMBER})", re.IGNORECASE)
_ALONE = re.compile(rf"\$?\s*({_NUMBER})")
_ENDS = "}.!%$ "  # behind the number of a reference
_GROUPED = re.compile(r"[-\u2212]?\d{1,3}(?:[.,'\u2019\u00a0\u202f]\d{3})+")


def is_right(case: Case, answer: str) -> bool | None:
    """Whether the answer of the last turn has a reference's number; None where no reference has one."""
    given = case.references if len(case.turns) == 1 else case.references[-1:]  # MT-Bench has one a turn
    due = {value for reference in given for value in _reference(str(reference))}
    if not due:
        return None
    marked = _MARK.findall(answer)
    numbers = marked or re.findall(_NUMBER, answer)
    return bool(numbers) and not due.isdisjoint(_readings(numbers[-1]))


def _reference(text: str) -> Iterator[Decimal]:
    text = text.strip().rstrip(_ENDS)
    found = _ALONE.fullmatch(text) or next((mark for mark in _MARK.finditer(text) if mark.end() == len(text)), None)
    if found is not None:
        yield from _readings(found[1])


def _readings(number: str) -> Iterator[Decimal]:
    """2,125 is two thousand where it can be grouped, and 2.125 in other languages: both, so that neither is wrong."""
    plain = number.replace("\u2212", "-")
    if _GROUPED.fullmatch(number) or plain.lstrip("-").isdecimal():
        yield Decimal(re.sub(r"[^\d-]", "", plain))
    whole, mark, rest = plain.rpartition("." if "." in plain else ",")
    if mark:
        yield Decimal(re.sub(r"[^\d-]", "", whole) + "." + rest)
