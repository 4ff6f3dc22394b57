"""Choosing for a GPU, a model and a load: the best of what exhaustive tuning finds, and what would
change it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from runs.conftest import write_phrases

from builders.profiles import FIT
from builders.runs import job_for
from specbench import commands
from specbench.advise import choose as room
from specbench.advise.choose import candidates_of, choose
from specbench.advise.tune import Tuner
from specbench.profile import Fit, find_pair
from specbench.profile.file import write_profile
from specbench.runs import job

NUMBERS = (1, 3, 10)
pytestmark = pytest.mark.usefixtures("steady_time")  # drafting has a price


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    return write_phrases(tmp_path_factory.mktemp("trace"), 2)


OVERRIDES = ("model.tokenizer=bundled:tiny", "model.template=raw")


@pytest.fixture(scope="module")
def points(trace, tmp_path_factory):
    """Runs of pld at several lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "POINTS", {"pld": {"num_draft": NUMBERS}})
        patch.setattr(room, "FIXED", ("measure=replay", "measure.warmup=0"))
        read = mock.Mock(side_effect=job.gather)
        patch.setattr(job, "gather", read)
        runs = room.replay_points(trace, OVERRIDES, tmp_path_factory.mktemp("points"))
        assert read.call_count == 1  # the trace, however many settings are replayed
        return runs


@pytest.mark.parametrize("per_fed_us", [10.0, 4000.0])
def test_it_agrees_with_exhaustive_tuning(points, trace, per_fed_us):
    """On the tuning half, over all points; a dear token moves the answer to shorter drafts."""
    profile = replace(FIT, surface=Fit(5.0, per_fed_us, 0.0, 0.0))
    key = "method.pld.num_draft"
    given = ["model=replay", f"model.trace={trace}", *OVERRIDES, "method=[pld]"]
    tuner = Tuner(
        lambda items: job_for(*items),
        given,
        profile,
        {key: [*map(str, NUMBERS)]},
        lambda text: None,
    )
    speeds = {number: tuner.speedup({key: str(number)}) for number in NUMBERS}
    best = max(speeds, key=speeds.__getitem__)
    found = choose(candidates_of(points), profile, 1)
    assert found is not None
    assert str(best) in found.best.name
    assert (best == 10) == (per_fed_us == 10.0)
    assert found.speedup.low is not None
    assert found.speedup.value == pytest.approx(speeds[best], rel=0.15)


def test_what_moves_the_choice_is_reported(points):
    """Both columns are of one definition: without drafting is never slower; a load moves the
    choice.
    """
    found, profile = candidates_of(points), find_pair("h100-8b")
    assert profile is not None
    free, paid = (choose(found, profile, 8, drafting) for drafting in (False, True))
    assert free is not None
    assert paid is not None
    assert free.speedup.value >= paid.speedup.value
    text = "\n".join(room.answer(found, profile, (1, 4096)))
    assert re.search(r"^1 at once: pld.*10.* times vanilla$", text, re.MULTILINE)
    assert "4096 at once: none is faster than vanilla" in text


def test_the_command(points, tmp_path, monkeypatch, capsys):
    path = write_profile(FIT, tmp_path)
    sweep = str(points[0].parent)

    def main(*given: str) -> int:
        return commands.main(["choose", *given])

    assert main(sweep, "--profile", str(path), "--load", "1,8") == 0
    out = capsys.readouterr().out
    assert "3 candidates" in out
    assert "8 at once: pld" in out
    assert "without drafting" in out
    assert main(sweep, "--gpu", "l4", "--model", "70b", "--load", "1") == 0
    assert "8 by tensor" in capsys.readouterr().out
    assert main(str(tmp_path / "nothing.jsonl")) == 2
    assert "specbench choose: error" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main("gsm8k") == 2
    assert "run `specbench model.path=MODEL suite=gsm8k` first" in capsys.readouterr().err
