"""The requirements for every method, tested for each yaml in conf/method without a list of
names.
"""

from __future__ import annotations

import dataclasses
import statistics

import pytest
from omegaconf import Container

from builders.runs import entry_of, job_for, method_names, settings_of
from specbench.measure.plan import RESETS
from specbench.method import Peer
from specbench.records.record import VANILLA
from specbench.records.store import read_run
from specbench.runs.config import PACKAGE, conf_dir
from specbench.runs.execution import execute
from specbench.types import InputError

DRAFT, FROZEN = "bundled:tiny_draft", "bundled:tiny/frozen_table.safetensors"
DATASTORE, PARD = "bundled:tiny/datastore.safetensors", "bundled:tiny_pard"
SUITE = ("suite.limit=1", "decode.max_new_tokens=12", "measure=quick", "measure.warmup=0")
FEW = "suite.first=2"  # of the suite's seven tasks, where fewer show it as well


@pytest.fixture(scope="module", params=method_names())
def name(request) -> str:
    return request.param


@pytest.fixture
def folder(name, together):
    return together.run(name, *SUITE)[0]


@pytest.fixture
def greedy(name, together):
    return together.run(name, *SUITE)[1]


def test_yaml_names_its_source_and_its_reset(name):
    text = (conf_dir() / "method" / f"{name}.yaml").read_text()
    assert text.startswith(f"# @package method.{name}\n# ")
    assert settings_of(name)["reset"] in RESETS


def test_page_exists(name):
    module = settings_of(name)["_target_"].split(".")[1]  # variants of one method share its page
    page = PACKAGE.parent / "docs" / "methods" / f"{module}.md"
    assert page.exists(), (
        f"{page} is missing; expected a page of the method with a section ## Parameters"
    )
    if not page.parent.is_dir():
        pytest.skip("docs/ is not next to an installed package")
    assert "## Parameters" in page.read_text() or name == VANILLA


def test_greedy_ids_equal_vanillas(name, greedy):
    cases = {case for _, case in greedy}
    assert len(cases) >= 6
    for case in cases:
        record = greedy[name, case]
        assert record.status == "ok", record.error
        assert [turn.ids for turn in record.turns] == [
            turn.ids for turn in greedy[VANILLA, case].turns
        ]
        assert record.lossless.violations == 0


def test_counts_add_up(name, greedy):
    peers = {name} if isinstance(entry_of(name).method, Peer) else set()
    # between a turn's time and its phases'; the processor may be taken away between two readings of
    # a clock
    gaps = []
    for (method, _), record in greedy.items():
        for turn in record.turns:
            assert len(turn.accept) == len(turn.proposed) == len(turn.fed) == len(turn.depth)
            # some draft with the prompt's forward; how much they draft they do not say
            if method in peers:
                assert 1 + sum(turn.accept) <= len(turn.ids)
            else:
                assert 1 + sum(turn.accept) == len(turn.ids)
                assert all(
                    count - 1 <= depth for count, depth in zip(turn.accept, turn.depth, strict=True)
                )
            assert turn.prefill_s > 0
            assert turn.decode_s >= 0
            if turn.phases_s:
                gaps.append(
                    abs(sum(turn.phases_s.values()) - turn.decode_s)
                    / max(0.05 * turn.decode_s, 2e-4)
                )
    assert not gaps or statistics.median(gaps) <= 1


def test_replay_of_the_run_gives_the_same_steps(name, greedy, folder, tmp_path):
    """Behind recorded tokens a drafter does what it did behind the model; one that needs the model
    is refused.
    """
    entry = entry_of(name)
    trace = (
        "model=replay",
        f"model.trace={folder / 'records.jsonl'}",
        f"model.frozen_table={FROZEN}",
    )
    refused = ""
    try:
        trace += (f"model.heads.pard={PARD}",)
        job = job_for(
            *trace, f"model.datastore={DATASTORE}", f"model.draft={DRAFT}", f"method=[{name}]"
        )
        execute(job, tmp_path, lambda *_: None)
    except InputError as error:
        refused = str(error)
    if refused:
        needs = entry.method.needs
        assert f"method.{name}" in refused
        assert (
            isinstance(entry.method, Peer)
            or needs.node_topk
            or needs.hidden
            or "weights" in refused
        )
        return
    for record in read_run(tmp_path).records:
        live = greedy[record.method, record.case]
        assert record.status == "ok", record.error
        for ours, theirs in zip(record.turns, live.turns, strict=True):
            assert (ours.ids, ours.accept, ours.proposed, ours.fed) == (
                theirs.ids, theirs.accept, theirs.proposed, theirs.fed,
            )  # fmt: skip
            assert ours.finish == theirs.finish


def starts_anew(name: str) -> bool:
    return settings_of(name)["reset"] in ("case", "turn")


def test_order_of_cases_does_not_matter(name, greedy, together):
    """A method that is reset by case gives the same accept lists whatever came before."""
    if not starts_anew(name):
        pytest.skip("keeps state across cases on purpose")
    _, shuffled = together.run(
        name, *SUITE, "suite.order=shuffled", "suite.seed=3", FEW, fits=starts_anew
    )
    assert name in {method for method, _ in shuffled}
    for key, record in shuffled.items():
        assert [turn.accept for turn in record.turns] == [turn.accept for turn in greedy[key].turns]


def draws_as_vanilla(name: str) -> bool:
    method = entry_of(name).method
    return not isinstance(method, Peer) and not method.draws


def test_sampling_emits_vanillas_ids_for_the_same_seed(name, together):
    if not draws_as_vanilla(name):
        pytest.skip("draws random numbers of its own: its distribution is tested, not its ids")
    _, sampled = together.run(
        name, *SUITE, "decode=sample", "decode.temperature=0.8", FEW, fits=draws_as_vanilla
    )
    assert name in {method for method, _ in sampled}
    for (_, case), record in sampled.items():
        assert record.status == "ok", record.error
        assert [turn.ids for turn in record.turns] == [
            turn.ids for turn in sampled[VANILLA, case].turns
        ]
        assert record.lossless is None


def test_no_omegaconf_object_reaches_a_method(name):
    entry = entry_of(name)
    given = list(vars(entry.method).values()) + list(entry.parameters.values())
    assert not any(isinstance(value, Container) for value in given)
    assert dataclasses.is_dataclass(entry)
