"""``engine.max_nodes=auto``: the limit with the most tokens a second is chosen once, and the run
stays lossless.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import specbench.runs.nodes
import specbench.runs.session
from builders.profiles import FIT
from builders.runs import execute_job, replay_settings, run_main, watch_job
from specbench.commands.compare import main as compare
from specbench.input import InputError
from specbench.kept import PLACE
from specbench.profile import Fit, write_profile
from specbench.records.store import read_manifest, read_run
from specbench.runs.job import job_of
from specbench.runs.nodes import (
    NodeSearch,
    climb,
    find_speedup,
    list_trials,
    pick_limit,
)
from specbench.runs.session import set_stage

STEP_MS = {1: 1.0, 2: 1.1, 3: 1.2, 5: 1.4, 9: 1.8, 17: 2.6, 33: 4.2, 65: 7.4}
RUN = (
    "model=tiny",
    "method=[pld,eagle2]",
    "suite.limit=1",
    "suite.categories=[qa,rag]",
    "measure=quick",
    "decode.max_new_tokens=12",
    "engine.max_nodes=auto",
)


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        (0.0, [256]),
        (0.001, [64, 128, 256]),
        (0.05, [2, 4, 8, 16, 32]),
        (0.3, [2, 4]),
        (2.0, [2]),
    ],
)
def test_live_trials_are_where_a_step_begins_to_cost_more(row, wanted):
    assert list_trials(lambda rows: 1 + row * (rows - 1), 256) == wanted


@pytest.mark.parametrize(
    ("speedups", "seen"),
    [
        ((1.0, 1.2, 1.3, 1.1), [4, 8, 16]),
        ((1.3, 1.2, 1.1, 1.0), [4, 8, 2]),
        ((1.0, 1.2, 1.1, 1.5), [4, 8, 2]),  # a second peak is not seen
        ((1.0, 1.2, 1.3, 1.4), [4, 8, 16]),
    ],
)
def test_a_climb_ends_where_more_nodes_are_slower(speedups, seen):
    sizes = (2, 4, 8, 16)
    known = dict(zip(sizes, speedups, strict=True))
    tried = climb(known.__getitem__, sizes, lambda: True)
    assert ([*tried], tried) == (seen, {size: known[size] for size in seen})
    assert [*climb(known.__getitem__, sizes, lambda: False)] == [4]
    assert climb(lambda size: 2.0, (256,), lambda: True) == {256: 2.0}


def test_the_limit_with_the_most_tokens_a_second_is_picked():
    assert pick_limit({1: 1.2, 4: 1.5, 256: 1.1}, 256)[0] == 4
    assert pick_limit({1: 1.2, 4: 1.11, 256: 1.19}, 256)[0] == 256  # nearly as good as whole
    assert pick_limit({1: 0.9, 4: 0.8, 256: 0.3}, 256)[0] == 0
    assert pick_limit({256: 0.0}, 256)[0] == 256  # its cases fail visibly
    assert pick_limit({256: 1.23456, 1: 1.0}, 256)[1] == {1: 1.0, 256: 1.235}


def trial(drafting_s: float):
    """A record of ten steps of three tokens each, that were the processor's for a quarter."""
    turn = SimpleNamespace(
        fed=[4] * 10, accept=[3] * 10, phases_s={"draft": 10 * drafting_s, "update": 0.0},
        wall_s=4.0, cpu_s=1.0,
    )  # fmt: skip
    return [SimpleNamespace(status="ok", turns=[turn])]


def test_a_speedup_counts_tokens_rows_and_drafting():
    """On a busy machine drafting is the processor's time."""
    assert find_speedup(trial(0.0), lambda rows: 1 + rows / 4) == pytest.approx(3 * 1.25 / 2)
    assert find_speedup(trial(2.0), lambda rows: 1.0) == pytest.approx(3 / 3)
    assert find_speedup(trial(2.0), lambda rows: 1.0, busy=True) == pytest.approx(3 / 1.5)
    failed = [SimpleNamespace(status="error", turns=[])]
    assert find_speedup(failed, lambda rows: 1.0) == 0.0


@pytest.mark.parametrize("name", ["pld", "suffix_decoding", "cacheback", "n_grammys"])
def test_a_replay_accepts_what_the_model_accepts_at_every_limit(name):
    """And a limit that is not asked for gives other accepted lengths: the comparison can fail."""
    settings = (f"method=[{name}]", *RUN[2:4], "measure=quick", "decode.max_new_tokens=24")
    job = job_of(["model=tiny", *settings, "engine.max_nodes=auto"])
    accepted = {}
    with set_stage(job) as stage:
        search = NodeSearch(job, stage)
        entry = job.entries[1]
        for nodes in (1, 3, 256):
            replayed = search._replay(entry, nodes)
            live = search._decode(entry, stage, nodes, search._cases)
            accepted[nodes], wanted = (
                [turn.accept for record in records for turn in record.turns]
                for records in (replayed, live)
            )
            assert accepted[nodes] == wanted
            assert [record.status for record in replayed] == ["ok"] * len(live)
    assert accepted[1] != accepted[256]


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """The cost of a step, and no drafting time, so that a choice is the same in every process."""
    monkeypatch.setattr(specbench.runs.session, "measure_steps", lambda *_: dict(STEP_MS))
    find = specbench.runs.nodes.find_speedup

    def without_drafting(records, step_s, busy=False):
        for record in records:
            for turn in record.turns:
                turn.phases_s |= {"draft": 0.0, "update": 0.0}
        return find(records, step_s, busy)

    monkeypatch.setattr(specbench.runs.nodes, "find_speedup", without_drafting)
    monkeypatch.setattr(specbench.runs.nodes, "CASES", 1)
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))


def nodes_of(manifest):
    methods = manifest.methods.items()
    return {name: method.nodes for name, method in methods if method.nodes is not None}


def accepted(record):
    return record.case, record.method, [turn.accept for turn in record.turns]


def test_limits_are_in_the_manifest_kept_when_a_run_is_resumed_and_lossless(
    steps, tmp_path, monkeypatch
):
    watch_job(tmp_path / "run", *RUN, stop_after=1)
    before = read_manifest(tmp_path / "run")
    limits = nodes_of(before)
    assert set(limits) == {"pld", "eagle2"}
    assert 0 < limits["eagle2"] < 59
    assert before.step_ms == {str(rows): ms for rows, ms in STEP_MS.items()}
    assert before.methods["eagle2"].node_speedups[str(limits["eagle2"])] > 1
    monkeypatch.setattr(
        specbench.runs.session, "measure_steps", lambda *_: pytest.fail("measured again")
    )
    monkeypatch.setattr(
        specbench.runs.nodes, "choose_nodes", lambda *_: pytest.fail("chosen again")
    )
    found = execute_job(tmp_path / "run", *RUN)
    after = read_manifest(tmp_path / "run")
    assert nodes_of(after) == limits
    assert after.step_ms == before.step_ms
    vanilla = {
        record.case: [turn.ids for turn in record.turns]
        for record in found
        if record.method == "vanilla"
    }
    for record in found:
        assert [turn.ids for turn in record.turns] == vanilla[record.case]
        for turn in record.turns:
            assert max(turn.proposed) <= limits.get(record.method, 0)
    line = run_main(lambda: compare(["pld", "eagle2", str(tmp_path / "run")])).stdout
    setting = ",".join(f"{name}:{nodes}" for name, nodes in limits.items())
    assert f"engine.max_nodes={{{setting}}} repeats this choice" in line.replace("\n", " ")
    again = execute_job(tmp_path / "again", *RUN[:-1], f"engine.max_nodes={{{setting}}}")
    assert [*map(accepted, again)] == [*map(accepted, found)]


def test_a_limit_of_no_node_is_plain_decoding(tmp_path):
    found = execute_job(tmp_path, *RUN[:-1], "engine.max_nodes={eagle2:0}")
    eagle, vanilla, pld = (
        [each for each in found if each.method == name] for name in ("eagle2", "vanilla", "pld")
    )
    assert [[turn.accept for turn in each.turns] for each in eagle] == [
        [turn.accept for turn in each.turns] for each in vanilla
    ]
    assert any(max(turn.proposed) == 10 for each in pld for turn in each.turns)  # it is not limited
    methods = read_run(tmp_path).manifest["methods"]
    assert (methods["eagle2"]["nodes"], "nodes" in methods["pld"]) == (0, False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("suite.part=1/2",), "suite.part: every part would choose"),
        (("load=closed",), "engine.max_nodes: expected a number with load=closed"),
        (
            ("engine.max_nodes={pdl:3}",),
            "engine.max_nodes.pdl: no method of this run that drafts; .*pld",
        ),
    ],
)
def test_limits_that_cannot_be_chosen_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        job_of([*RUN, *given])


def test_an_earlier_choice_of_this_machine_is_taken(steps, tmp_path, monkeypatch, capsys):
    """Of the same parameters, also if the run was another one; and a choice survives an
    interrupt.
    """
    first = NodeSearch.choose

    def interrupted(self, entry):
        if entry.name == "eagle2":
            raise KeyboardInterrupt
        return first(self, entry)

    monkeypatch.setattr(NodeSearch, "choose", interrupted)
    with pytest.raises(KeyboardInterrupt):
        execute_job(tmp_path / "one", *RUN)
    asked = []
    monkeypatch.setattr(
        NodeSearch,
        "choose",
        lambda self, entry: asked.append(entry.name) or first(self, entry),
    )
    execute_job(tmp_path / "two", *RUN)
    assert asked == ["eagle2"]
    assert "nodes of pld: as an earlier run chose them" in capsys.readouterr().out
    execute_job(tmp_path / "three", *RUN, "measure.seed=1")
    assert asked == ["eagle2"]
    chosen = [read_manifest(tmp_path / name).methods["pld"].nodes for name in ("two", "three")]
    assert chosen[0] == chosen[1]
    execute_job(tmp_path / "four", *RUN, "method.pld.num_draft=9")
    assert asked == ["eagle2", "pld"]
    execute_job(tmp_path / "five", *RUN, "measure.fresh=true")
    assert asked[2:] == ["pld", "eagle2"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((), "auto"),
        (("load=closed",), 256),
        (("suite.part=1/2",), 256),
        (("engine=eager",), "auto"),
        (("engine.max_nodes=64",), 64),
    ],
)
def test_on_a_processor_a_model_of_ones_own_gets_the_nodes_that_pay(given, wanted):
    own = ("model.path=bundled:tiny", "method=[pld]", "suite=mini", "suite.limit=1")
    assert job_of([*own, *given]).config.engine.max_nodes == wanted
    assert job_of([*RUN[:-1]]).config.engine.max_nodes == 256


def test_a_replay_takes_the_cost_of_a_step_from_a_profile(steps, tmp_path):
    """It has no model to measure. The same drafts pay where a row is free, and none pays where a
    row costs a step.
    """
    answer = [5, 6, 7, 8, 5, 6, 9, 5, 7, 8, 6] * 4
    lines = [
        {"case": "a", "category": "a", "turns": [{"prompt_ids": [1, 5, 6, 7, 8, 5], "ids": answer}]}
    ]
    replay = (
        *replay_settings(tmp_path / "t.jsonl", lines),
        "method=[pld]",
        "measure.warmup=0",
        "engine.max_nodes=auto",
    )
    with pytest.raises(
        InputError, match="length_profile=None: expected a latency profile, as a replay"
    ):
        job_of([*replay])
    chosen = {}
    for name, row_us in (("free", 0.0), ("dear", 1e6)):
        path = write_profile(replace(FIT, model=name, surface=Fit(5.0, row_us, 0.0, 1.0)), tmp_path)
        execute_job(tmp_path / name, *replay, f"decode.length_profile={path}")
        manifest = read_manifest(tmp_path / name)
        chosen[name] = manifest.methods["pld"].nodes
        assert manifest.step_ms is None  # it is the profile's
    assert chosen == {"free": 256, "dear": 0}
