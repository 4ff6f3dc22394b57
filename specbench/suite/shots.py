"""Worked examples in front of a question (few-shot prompting), drawn once for the whole suite.

The draw has its own seed, so another sample or order of the suite does not change the prompts.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import PurePosixPath

from specbench.suite.format import SuiteFormat
from specbench.suite.sources import HubAddress, locate
from specbench.types import InputError

_SPLIT = "train"  # never the split that is measured


@dataclass(frozen=True, slots=True)
class Shots:
    """How many worked examples, drawn with which seed, and from which file.

    source: a file of the suite's format; None for ``train.jsonl`` where the suite's own file is kept, then the train
    split of its data set on the hub.
    """

    count: int = 0
    seed: int = 0
    source: str | os.PathLike[str] | None = None


def worked(
    name: str, shots: Shots, format: SuiteFormat, form: str, relative: str | None, hub: HubAddress | None
) -> tuple[str, str]:
    """The examples as the text in front of every question, and the SHA-256 of the file that they are from.

    They keep the order of their file, so a file of exactly ``count`` rows is taken whole, as it stands. Raises
    InputError for a bad count or form, for a file that is not found, and for one with too few rows.
    """
    _check(shots, format, form)
    if not shots.count:
        return "", ""
    beside = str(PurePosixPath(relative or f"{name}/test.jsonl").with_name(f"{_SPLIT}.jsonl"))
    there = {**hub, "split": _SPLIT, "file": None} if hub else None
    place = locate(f"{name} examples", shots.source, beside, there, key="suite.shots_from", holds=format.holds)
    rows, digest = format.read_rows(place, "suite.shots_from")
    if fault := next((row.fault for row in rows if row.fault), ""):
        raise InputError(fault)
    if len(rows) < shots.count:
        raise InputError(
            f"suite.shots={shots.count}: {place} has {len(rows)} rows. Ask for fewer, or name another file."
        )
    drawn = sorted(random.Random(f"shots {shots.seed}").sample(range(len(rows)), shots.count))
    assert format.shot is not None  # checked above
    return "".join(format.shot(rows[index]) for index in drawn), digest


def _check(shots: Shots, format: SuiteFormat, form: str) -> None:
    for key, value in (("shots", shots.count), ("shots_seed", shots.seed)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"suite.{key}={value!r}: expected a whole number.")
    if shots.count < 0:
        raise InputError(f"suite.shots={shots.count}: expected a whole number of at least 0.")
    if shots.count and format.shot is None:
        raise InputError(f"suite.shots={shots.count}: this suite's format has no worked examples; leave it out.")
    if shots.count and form != format.shot_form:
        raise InputError(
            f"suite.shots={shots.count}: suite.form={form} puts no examples in front of a question; "
            f"set suite.form={format.shot_form}, or leave suite.shots out."
        )
