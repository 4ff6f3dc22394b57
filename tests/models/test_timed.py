"""Timing without weights: every step is a true step, and what it emits is the record's."""

from __future__ import annotations

import json
import random

import pandas as pd
import pytest
import torch
from models.test_fast import Tape
from models.test_rows import ScriptedRows
from models.test_rows import scripts as row_scripts

from builders.engines import Scripted, decode_one, read_slots, scripts
from builders.models import VOCAB, build
from builders.records import write_json_lines
from builders.runs import by_case, execute_job, job_for
from specbench.decode.walk import Walk
from specbench.models import weights
from specbench.models.eager.engine import EagerEngine
from specbench.models.engine import Silent
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import EXACT, GRAPHED
from specbench.models.replay import ReplayEngine, SyntheticAcceptance, TimedEager, TimedFast
from specbench.records.store import read_manifest, read_run
from specbench.report.frames.findings import gather
from specbench.report.frames.headline import find_headlines
from specbench.types import CaseError, Draft, InputError, Needs

PROMPT = [5, 17, 3, 42, 8, 11]
COUNT = 30
ENGINES = {
    "eager": lambda model: TimedEager(model, 512, frozenset(), 64),
    "fast": lambda model: TimedFast(
        model, 512, frozenset(), 64, EXACT, FastOptions(compiled=False)
    ),
    "graphed": lambda model: TimedFast(model, 512, frozenset(), 64, GRAPHED),
}
LIVE = {
    "eager": lambda model: EagerEngine(model, 512, frozenset(), 64),
    "fast": lambda model: FastEngine(
        model, 512, frozenset(), 64, EXACT, FastOptions(compiled=False)
    ),
}
QUICK = ("measure.warmup=1", "measure.control=false")
METHODS = "method=[pld,sam,cacheback_no_frozen,n_grammys,n_grammys_trie,token_recycling]"
CONTEXT = ("method.n_grammys.strategy=context", "method.n_grammys_trie.strategy=context")


def make_answer(count: int = COUNT) -> list[int]:
    """An answer that no model gave, with repetitions to draft from."""
    rng = random.Random(4)
    return [rng.choice((7, 9, 21, 40)) for _ in range(count)]


def follow(engine, method, limit=COUNT):
    """Decode the answer; returns the transcript and the keys and values that are cached then."""
    engine.load(PROMPT, make_answer())
    return decode_one(engine, method, PROMPT, limit)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", [*scripts([]), "last_wins"])
def test_the_cache_holds_the_recorded_tokens(kind, name):
    """After steps of a random model along an answer it never gave: a fresh read of prompt and
    answer, slot by slot.
    """
    model = build("llama", torch.float64)
    written = {**scripts([*make_answer(), 1, 1]), **row_scripts(make_answer())}[name]
    method = ScriptedRows(written) if name == "last_wins" else Scripted(written)
    engine = ENGINES[kind](model)
    out = follow(engine, method)
    assert out.ids == make_answer()
    replay = ReplayEngine(frozenset(), 64)
    recalled = follow(replay, method)
    assert (out.accept, out.fed) == (recalled.accept, recalled.fed)
    if name not in ("empty", "wrong"):
        assert max(out.accept) > 1
    length = len(PROMPT) + COUNT - 1
    fresh = EagerEngine(model, 512, frozenset(), 64)
    fresh.reserve(length)
    with torch.inference_mode():
        fresh.start([*PROMPT, *make_answer()[:-1]], 1, Walk(None, 0), Needs(), Silent())
    theirs = read_slots(fresh, length)
    for mine, right in zip(read_slots(engine, length), theirs, strict=True):
        assert (mine - right).abs().max() < 1e-8


def computed(engine, part):
    """Operations of the first step of a second request on a tree of five, in its forward or in its
    settling.
    """
    found = {}
    for _ in range(2):
        engine.start(PROMPT, COUNT, Walk(None, 0), Needs(), Silent())
        for name, call in {
            "forward": lambda: engine.forward(Draft([7, 9, 9, 21, 40], [-1, -1, 0, 1, 1])),
            "settle": lambda: engine.settle(COUNT),
        }.items():
            with Tape() as tape:
                call()
            found[name] = [(operation, shapes) for operation, shapes, _ in tape.seen]
    return found[part]


@pytest.mark.parametrize("part", ["forward", "settle"])
@pytest.mark.parametrize("kind", ["eager", "fast"])
def test_a_step_computes_what_a_live_step_computes(kind, part):
    """The very operations on the very shapes; only what the eager engine moves depends on what was
    accepted.
    """
    model = build("llama")
    live, timed = LIVE[kind](model), ENGINES[kind](model)
    timed.load(PROMPT, make_answer())
    theirs, ours = computed(live, part), computed(timed, part)
    names = [name for name, _ in ours]
    if part == "forward":
        assert ours == theirs
        assert names.count("aten::scaled_dot_product_attention") == 2  # layers
    elif kind == "fast":
        assert ours == theirs
        assert ("aten::max", [(6, VOCAB)]) in ours
        assert "aten::index_copy_" in names  # compaction
    else:
        over_vocabulary = [entry for entry in ours if entry[1] == [(6, VOCAB)]]
        assert over_vocabulary == [("aten::max", [(6, VOCAB)]), ("aten::argmax", [(6, VOCAB)])]


def run(folder, *overrides):
    return by_case(execute_job(folder, *overrides))


def steps(found):
    return {
        key: [(turn.ids, turn.accept, turn.fed, turn.finish) for turn in record.turns]
        for key, record in found.items()
    }


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A run of the bundled model that records itself, and its steps."""
    folder = tmp_path_factory.mktemp("live")
    found = run(
        folder, METHODS, *CONTEXT, "model=tiny", "suite=mini", "suite.limit=1", "suite.first=4",
        "decode.max_new_tokens=16", "measure=quick", "measure.lossless=false",
    )  # fmt: skip
    return folder / "records.jsonl", found


@pytest.mark.parametrize("attention", ["sdpa", pytest.param("eager", marks=pytest.mark.exhaustive)])
def test_the_models_own_record_gives_its_own_steps(live, tmp_path, attention):
    trace, found = live
    timed = (f"model.trace={trace}", METHODS, *CONTEXT, *QUICK)
    again = run(
        tmp_path / "run", "model=tiny", "engine=timed", f"model.attention={attention}", *timed
    )
    assert steps(again) == steps(found)
    manifest = read_manifest(tmp_path / "run")
    assert manifest.engine == "timed"
    assert manifest.trace.startswith("records: 4 conversations")
    assert {name for name, entry in manifest.methods.items() if entry.reads_target} == {
        "token_recycling"
    }
    assert any("eager forward" in text for text in manifest.warnings) == (attention == "eager")
    assert all(record.lossless is None for record in again.values())
    assert all(
        turn.phases_s["forward"] > 0
        for record in again.values()
        for turn in record.turns
        if turn.accept
    )


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model=random"], ["model.trace: not set", "engine=timed"]),
        (["model=replay", "model.trace={trace}"], ["engine=timed", "no model to time"]),
        (["model=random", "model.trace={high}"], ["id 9999", "model.random.config.vocab_size"]),
        (
            ["model=random", "model.trace={trace}",
            "model.random.config.max_position_embeddings=64"], ["context is of 64",
            "longest request"],
        ),
        (["model=random", "model.trace={trace}", "method=[hf_generate]"], ["method.hf_generate"]),
        (["model=random", "model.trace={trace}", "measure=quick"], ["measure.lossless=true"]),
        (["model=random", "model.trace={trace}", "model.random.config.vocab_size=500"],
        ["2048 tokens", "logits 500"]),
    ],
)  # fmt: skip
def test_what_cannot_be_timed_says_why(live, tmp_path, overrides, words):
    trace, _ = live
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    vanilla = [line for line in lines if line["method"] == "vanilla"]
    vanilla[0]["turns"][0]["ids"][0] = 9999
    high = write_json_lines(tmp_path / "high.jsonl", vanilla)
    (tmp_path / "manifest.json").write_text((trace.parent / "manifest.json").read_text())
    method = [] if any(text.startswith("method") for text in overrides) else ["method=[pld]"]
    with pytest.raises(InputError) as raised:
        run(
            tmp_path / "run",
            "engine=timed",
            *(text.format(trace=trace, high=high) for text in overrides),
            *method,
        )
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize(
    ("shape", "billions"),
    [("random_110m", 0.11), ("random_7b", 6.74), ("random_13b", 13.0), ("random_33b", 32.5)],
)
def test_shapes_have_the_size_of_their_name(shape, billions, monkeypatch):
    """As written; no weights are made, so any machine has room for them."""
    monkeypatch.setattr(weights, "_total_memory", lambda *_: 1 << 40)
    config = job_for(f"model={shape}", "method=[pld]").source.card.config
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert sum(each.numel() for each in model.parameters()) / 1e9 == pytest.approx(
        billions, rel=0.01
    )


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize(
    ("curve", "emitted"), [(2.5, {2, 3}), (1, {1}), (4, {4}), ([1.0, 0.0], {2})]
)
def test_drawn_acceptance_is_that_of_the_curve_whatever_is_drafted(kind, curve, emitted):
    """A chain of wrong tokens and one of right ones; the record's tokens are emitted."""
    engine, answer, found = ENGINES[kind](build("llama", torch.float64)), make_answer(300), []
    for tokens in (answer, [1] * len(answer)):
        engine.acceptance = SyntheticAcceptance(curve)
        engine.load(PROMPT, answer)
        method = Scripted(lambda _, done, __, tokens=tokens: Draft.chain(tokens[done : done + 3]))
        out = decode_one(engine, method, PROMPT, len(answer))
        assert out.ids == answer
        assert set(out.accept[:-3]) == emitted
        found.append(out.accept)
    assert found[0] == found[1]


def test_one_draw_gives_every_rate():
    """The unconditional rates: the share of 40,000 draws that accept at least so many. A mean
    length has its mean.
    """
    rates = [0.9, 0.6, 0.55, 0.1]
    drawn = SyntheticAcceptance(rates)
    drawn.restart(PROMPT)
    counts = [drawn.draw(4) for _ in range(40_000)]
    for place, rate in enumerate(rates):
        assert sum(count > place for count in counts) / len(counts) == pytest.approx(rate, abs=0.01)
    mean = SyntheticAcceptance(3.24)
    mean.restart(PROMPT)
    lengths = [1 + mean.draw(4) for _ in range(40_000)]
    assert set(lengths) == {3, 4}
    assert sum(lengths) / len(lengths) == pytest.approx(3.24, abs=0.01)
    assert max(1 + mean.draw(2) for _ in range(100)) == 3  # no more than the draft has
    drawn.restart(PROMPT)
    assert [drawn.draw(4) for _ in range(100)] == counts[:100]


def test_drawn_acceptance_needs_a_chain():
    engine = ENGINES["eager"](build("llama", torch.float64))
    engine.acceptance = SyntheticAcceptance(2.0)
    engine.load(PROMPT, make_answer())
    with pytest.raises(CaseError, match="the draft is a tree"):
        decode_one(engine, Scripted(lambda *_: Draft([1, 2], [-1, -1])), PROMPT, COUNT)


@pytest.mark.parametrize("curve", ["0.5", "x", "[]", "[0.5,0.6]", "[1.1]", "[nan]", "true"])
def test_a_curve_that_is_none(curve):
    with pytest.raises(InputError, match=r"engine\.acceptance.*expected the mean tokens"):
        job_for("model=tiny", "engine=timed", "model.trace=x.jsonl", f"engine.acceptance={curve}")


def test_a_run_whose_acceptance_is_drawn_claims_times_only(tmp_path):
    live, drawn = tmp_path / "live", tmp_path / "drawn"
    run(live, "model=tiny", "method=[]", "suite.limit=1", "measure=quick")
    given = [
        "model=tiny",
        "engine=timed",
        f"model.trace={live / 'records.jsonl'}",
        "engine.acceptance=2.5",
        *QUICK,
    ]
    found = run(
        drawn, *given, "method=[speculative_sampling]", "method.speculative_sampling.schedule=fixed"
    )
    findings = gather([read_run(drawn)])
    row = findings.summary.query("category == 'overall' and method == 'speculative_sampling'").iloc[
        0
    ]
    assert row["mat"] == pytest.approx(2.5, abs=0.2)
    assert pd.isna(row["speedup"])
    assert row["time_only_step_ms"] > 0
    (facts,) = findings.facts
    assert facts.time_note == "time only: acceptance drawn from a table (engine.acceptance=2.5)"
    assert not find_headlines(findings)
    vanilla = [record for (method, _), record in found.items() if method == "vanilla"]
    assert all(set(turn.accept) == {1} for record in vanilla for turn in record.turns)
