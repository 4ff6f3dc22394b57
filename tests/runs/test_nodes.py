"""``engine.max_nodes=auto``: the limit with the most tokens a second is chosen once, and the run
stays lossless.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

import specbench.runs.nodes
import specbench.runs.session
from builders.profiles import FIT
from builders.runs import execute_job, replay_settings, run_main, watch_job
from specbench.commands.compare import main as compare
from specbench.input import InputError
from specbench.profile import Fit, write_profile
from specbench.records.store import read_manifest, read_run
from specbench.runs.job import job_of
from specbench.runs.nodes import SIZES, find_speedup, search

WIDE = 30
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


def trial(nodes: int, right: float = 0.7, drafting_s: float = 0.0, failed: bool = False):
    """A record of ten steps: of a chain of ``nodes``, at most ``WIDE``, each token is right with
    this chance.
    """
    fed = min(nodes, WIDE)
    turn = SimpleNamespace(
        proposed=[fed] * 10, fed=[1 + fed] * 10,
        accept=[sum(right**depth for depth in range(fed + 1))] * 10,
        phases_s={"draft": 10 * drafting_s, "update": 0.0}, wall_s=4.0, cpu_s=1.0,
    )  # fmt: skip
    return [SimpleNamespace(status="error" if failed else "ok", turns=[turn])]


@pytest.mark.parametrize("row", [0.001, 0.05, 0.2, 0.6, 2.0])
@pytest.mark.parametrize("drafting_s", [0.0, 0.8])
def test_the_limit_with_the_most_tokens_a_second_is_found(row, drafting_s):
    """Against a search through every number of nodes: none is more than 5 % better."""

    def step_s(rows: int) -> float:
        return 1 + row * (rows - 1)

    def speedup(nodes: int) -> float:
        return sum(0.7**depth for depth in range(nodes + 1)) / (step_s(1 + nodes) + drafting_s)

    seen: list[int] = []
    found, tried = search(
        lambda nodes: seen.append(nodes) or trial(nodes, 0.7, drafting_s),
        partial(find_speedup, step_s=step_s),
        256,
    )
    best = max(speedup(nodes) for nodes in range(1, WIDE + 1))
    if best > 1:
        assert speedup(min(found, WIDE)) > 0.95 * best
        assert tried[str(found)] == pytest.approx(speedup(min(found, WIDE)), abs=1e-3)
    else:
        assert found == 0
    assert seen[0] == 256  # the whole draft, which tells where to end
    assert seen[1:] == list(SIZES[: len(seen) - 1])
    if row >= 0.6:
        # it ends where more nodes are far behind
        assert len(seen) < 1 + sum(size < WIDE for size in SIZES)


def test_a_draft_that_is_always_worth_it_stays_whole_and_failed_trials_hide_nothing():
    flat, rising = (
        partial(find_speedup, step_s=step_s)
        for step_s in (lambda rows: 1.0, lambda rows: 1 + 0.01 * rows)
    )
    assert search(trial, flat, 256)[0] == 256
    # its cases fail visibly
    assert search(lambda nodes: trial(nodes, failed=True), flat, 256)[0] == 256
    assert search(lambda nodes: trial(nodes, right=0.0), rising, 256)[0] == 0


def test_on_a_busy_machine_drafting_is_the_processors_time():
    """A drafter that waited for the processor in three quarters of its time pays, and by the wall
    time it does not.
    """
    found = {}
    for busy in (False, True):
        found[busy] = search(
            lambda nodes: trial(nodes, 0.7, drafting_s=4.0),
            partial(find_speedup, step_s=lambda rows: 1.0, busy=busy),
            256,
        )[0]
    assert found == {False: 0, True: 256}


@pytest.fixture
def steps(monkeypatch):
    """The cost of a step, and no drafting time, so that a choice is the same in every process."""
    monkeypatch.setattr(specbench.runs.session, "measure_steps", lambda *_: dict(STEP_MS))
    find = specbench.runs.nodes.find_speedup

    def without_drafting(records, step_s, busy):
        for record in records:
            for turn in record.turns:
                turn.phases_s |= {"draft": 0.0, "update": 0.0}
        return find(records, step_s, busy)

    monkeypatch.setattr(specbench.runs.nodes, "find_speedup", without_drafting)
    monkeypatch.setattr(specbench.runs.nodes, "CASES", 1)


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
