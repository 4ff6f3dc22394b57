"""The formats by their names in ``suite.format``; a new one is a reader file and a line here."""

from __future__ import annotations

from specbench.suite import (
    gsm8k_file,
    humaneval_file,
    mbpp_file,
    mgsm_110_file,
    mgsm_file,
    mt_bench_file,
    question_file,
    token_recycling_file,
)
from specbench.suite.format import Format
from specbench.types import InputError

QUESTIONS = "questions"
FORMATS = {
    QUESTIONS: question_file.FORMAT,
    "mt_bench": mt_bench_file.FORMAT,
    "humaneval": humaneval_file.FORMAT,
    "mbpp": mbpp_file.FORMAT,
    "token_recycling": token_recycling_file.FORMAT,
    "gsm8k": gsm8k_file.FORMAT,
    "mgsm": mgsm_file.FORMAT,
    "mgsm_110": mgsm_110_file.FORMAT,
}


def format_named(name: str | None) -> Format:
    """The format that ``suite.format`` names, by default Spec-Bench's. Raises InputError for one that there is not."""
    if name is not None and name not in FORMATS:
        raise InputError(f"suite.format={name}: expected one of {', '.join(FORMATS)}, or null for {QUESTIONS}.")
    return FORMATS[name or QUESTIONS]
