"""Suites: the questions of a benchmark as cases, and the prompts that a target is given for them.

A suite is a file of questions plus a selection. Where the file came from and its hash travel with the cases, so that
a run can say what it measured on.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from specbench.suite.prompt import PromptBuilder, answer_text
from specbench.suite.question_file import parse, read_bytes
from specbench.suite.selection import EVERYTHING, Selection, select
from specbench.suite.sources import locate
from specbench.types import Case

__all__ = ["PromptBuilder", "Selection", "Suite", "answer_text", "load_suite", "select"]


@dataclass(frozen=True, slots=True)
class Suite:
    """The selected cases of a benchmark, and where they are from.

    origin: path of the file. sha256: of the file's bytes as they lie on disk (packed, if it is gzipped).
    warnings: what makes the numbers hard to compare with others', for the run's manifest.
    """

    name: str
    cases: tuple[Case, ...]
    origin: str
    sha256: str
    warnings: tuple[str, ...] = ()


def load_suite(
    name: str,
    *,
    path: str | os.PathLike[str] | None = None,
    relative: str | None = None,
    hub: Mapping[str, str | None] | None = None,
    expected: int | None = None,
    sha256: str | None = None,
    selection: Selection = EVERYTHING,
) -> Suite:
    """Find, read and narrow a suite of Spec-Bench-format questions.

    path, relative, hub: where the file is (see ``sources.locate``). expected: how many questions the official file
    has; sha256: its hash; another number or hash is a warning. Raises InputError for a file that is missing or
    malformed, and for a selection that names what is not there.
    """
    origin = locate(name, path, relative, hub)
    raw = read_bytes(origin)
    cases = parse(raw, origin)
    digest = hashlib.sha256(raw).hexdigest()
    warnings = []
    if expected is not None and len(cases) != expected:
        warnings.append(f"Suite {name}: {origin} has {len(cases)} questions, the official file has {expected}.")
    if sha256 is not None and digest != sha256.lower():
        warnings.append(f"Suite {name}: {origin} has sha256 {digest}, the official file has {sha256.lower()}.")
    return Suite(name, tuple(select(cases, selection)), str(origin), digest, tuple(warnings))
