"""Tuning: the best parameters move with what a fed token costs, and are judged on cases they were
not chosen on.
"""

from dataclasses import replace

import pytest
from runs.conftest import write_phrases

from builders.profiles import FIT
from builders.records import write_chat
from builders.runs import job_for
from specbench import commands
from specbench.advise.tune import Tuner, gain_of, speedup_of
from specbench.profile import Fit, write_profile
from specbench.types import InputError

pytestmark = pytest.mark.usefixtures("steady_time")  # drafting has a price


def replaying(path, *changes):
    return [
        "model=replay",
        f"model.trace={path}",
        "model.tokenizer=bundled:tiny",
        "model.template=raw",
        *changes,
    ]


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    return replaying(write_phrases(tmp_path_factory.mktemp("trace")), "method=[pld]")


def tuner(overrides, per_fed_us, grid):
    profile = replace(FIT, surface=Fit(5.0, per_fed_us, 0.0, 0.0))
    return Tuner(lambda items: job_for(*items), overrides, profile, grid, report=lambda text: None)


GRID = {"method.pld.num_draft": ["1", "4", "10", "16"]}


def test_the_optimum_moves_with_what_a_token_costs(overrides):
    free, dear = (tuner(overrides, cost, GRID).climb() for cost in (0.0, 4000.0))
    assert int(free.point.get("method.pld.num_draft", "10")) > int(
        dear.point["method.pld.num_draft"]
    )
    assert free.speedup > dear.speedup
    assert dear.tried == 4  # the configuration's own 10 is not replayed twice


def test_the_halves_are_disjoint_and_the_gain_is_paired(overrides):
    search = tuner(overrides, 4000.0, GRID)
    halves = [search.replay({}, part) for part in ("1/2", "2/2")]
    assert not set(halves[0].index) & set(halves[1].index)
    assert sum(map(len, halves)) == 20
    tuned = search.replay({"method.pld.num_draft": "1"}, "2/2")
    gain = gain_of(halves[1], tuned)
    assert gain.value == pytest.approx(speedup_of(tuned).value / speedup_of(halves[1]).value)
    assert gain.low <= gain.value <= gain.high
    assert gain_of(tuned, tuned).value == pytest.approx(1)


def test_two_parameters_that_only_move_together_are_found(overrides):
    search = tuner(overrides, 0.0, {"a": ["1"], "b": ["1"]})
    worth = {(): 1.0, ("a=1",): 0.0, ("b=1",): 0.9, ("a=1", "b=1"): 2.0}
    search.speedup = lambda point: worth[
        tuple(sorted(f"{key}={value}" for key, value in point.items()))
    ]
    assert dict(search.climb().point) == {"a": "1", "b": "1"}


def test_a_refused_point_is_passed_over_and_a_refused_configuration_is_an_error(overrides):
    search = tuner(overrides, 0.0, {"method.pld.num_draft": ["0", "4"]})
    assert search.speedup({"method.pld.num_draft": "0"}) == 0
    with pytest.raises(InputError, match="num_draft"):
        tuner([*overrides, "method.pld.num_draft=0"], 0.0, GRID).climb()
    with pytest.raises(InputError, match="expected one to tune"):
        tuner([*overrides, "method=[pld,sam]"], 0.0, GRID).climb()


@pytest.mark.parametrize(
    ("changes", "grid", "message"),
    [
        (
            (),
            {"method.pld.num_drafts": ["1"]},
            "--grid pld.num_drafts: no such setting; did you mean num_draft",
        ),
        (("suite.part=1/2",), GRID, "suite.part=1/2"),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_the_first_replay(
    overrides, changes, grid, message
):
    search = tuner([*overrides, *changes], 0.0, grid)
    if not changes:
        search.job_of = lambda _: pytest.fail("the trace was read")
    with pytest.raises(InputError, match=message):
        search.check()


def test_what_has_no_price_is_an_error_and_no_figure(tmp_path):
    empty = write_chat(tmp_path / "empty.jsonl", 2 * [("Hi", "Yes")])
    with pytest.raises(InputError, match="no answer has a decode step"):
        tuner(replaying(empty, "method=[pld]", "decode.max_new_tokens=1"), 0.0, GRID).replay(
            {}, "1/2"
        )
    live = ("model=tiny", "suite.first=2", "decode.max_new_tokens=4", "measure=quick")
    with pytest.raises(InputError, match="a loop of its own"):
        tuner([*live, "method=[hf_prompt_lookup]"], 0.0, {}).replay({}, "1/2")
    along = ["model=tiny", "engine=timed", f"model.trace={empty}", "model.template=raw"]
    with pytest.raises(InputError, match="expected model=replay"):
        tuner([*along, "method=[pld]"], 0.0, GRID).check()


@pytest.fixture
def command(tmp_path):
    """Overrides -> exit code of ``specbench tune``."""
    profile = write_profile(replace(FIT, surface=Fit(5.0, 4000.0, 0.0, 0.0)), tmp_path)

    def main(*arguments: str, grid: str = "pld.num_draft=1,10") -> int:
        return commands.main(["tune", "--profile", str(profile), "--grid", grid, *arguments])

    return main


def test_the_command_prints_the_configuration_to_use(overrides, command, capsys):
    assert command(*overrides) == 0
    out = capsys.readouterr().out
    assert "use: method.pld.num_draft=1" in out
    assert "held-out half, 2/2, 10 cases" in out
    for wrong, message in (
        (["--grid", "pld.num_draft=1,,4"], "--grid pld.num_draft=1,,4"),
        (["model.device=cpu"], "model.device=cpu: has no effect with engine.kind=replay"),
    ):
        assert command(*overrides, *wrong) == 2
        assert message in capsys.readouterr().err


def test_one_case_has_no_held_out_half_and_is_refused_before_the_search(
    overrides, command, monkeypatch, capsys
):
    monkeypatch.setattr(Tuner, "climb", None)
    assert command(*overrides, "suite.first=1") == 2
    assert "suite.part=2/2 leaves no case" in capsys.readouterr().err


def test_few_cases_have_no_interval_and_nothing_better_no_gain(overrides, command, capsys):
    assert command(*overrides, "suite.first=6", grid="pld.num_draft=10") == 0
    out = capsys.readouterr().out
    assert "3 cases (modelled; no interval under 8 cases)" in out
    assert "gain           1.000\nuse: the configuration unchanged" in out


def test_with_several_requests_at_once_short_drafts_win(overrides):
    """Tokens fed cost eight times as much, a forward's base as much as before, and every drafter's
    time counts.
    """
    alone, loaded = (tuner(overrides, 1000.0, GRID) for _ in range(2))
    loaded.requests = 8
    own, shared = (search.replay({}, "1/2") for search in (alone, loaded))
    fed_ms = own["vanilla_ms"] - 5.0 * own["emitted"]
    assert shared["vanilla_ms"].to_numpy() == pytest.approx(
        (own["vanilla_ms"] + 7 * fed_ms).to_numpy()
    )
    best = [
        int(dict(search.climb().point).get("method.pld.num_draft", 10))
        for search in (alone, loaded)
    ]
    assert best[1] < best[0]
