"""Every drafter that can be replayed drafts, step by step, what its brute-force twin drafts; a
wrong twin does not.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from builders.drafts import root_paths
from builders.runs import job_for
from methods.sam import build_automaton
from specbench.records.record import VANILLA, CaseRecord, TurnRecord
from specbench.records.store import read_run
from specbench.runs.execution import execute
from twins.loop import Played, Turn, replay
from twins.variants import EOS, STATIC, VARIANTS, VOCAB, Variant, documents

MUTANTS = [
    pytest.param(variant, mutant, marks=[pytest.mark.exhaustive] if place else [])
    for variant in VARIANTS
    for place, mutant in enumerate(variant.mutants)
]


class Trace:
    """A recorded file and what the harness makes of it, each variant decoded once."""

    def __init__(self, path: Path, *overrides: str) -> None:
        self.path, self.overrides = path, overrides
        self.played: dict[str, tuple[list[Turn], list[Played]]] = {}

    def harness(self, variant: Variant) -> tuple[list[Turn], list[Played]]:
        """The turns in the order in which they ran, and the steps that the records have of each."""
        if variant.name not in self.played:
            folder = self.path.parent / variant.name
            job = job_for(
                "model=replay", f"model.trace={self.path}", "measure.warmup=0",
                "measure.keep_trees=1000000", *self.overrides,
                *(text.format(folder=self.path.parent) for text in variant.overrides()),
            )  # fmt: skip
            execute(job, folder, lambda *_: None)
            self.played[variant.name] = _read(folder, variant.method)
        return self.played[variant.name]


def _read(folder: Path, method: str) -> tuple[list[Turn], list[Played]]:
    turns, played = list[Turn](), list[Played]()
    for record in sorted(read_run(folder).records, key=lambda record: record.block):
        assert record.error is None, record.error
        for turn in record.turns:
            if record.method == VANILLA:
                turns.append(Turn(record.case, turn.prompt_ids, turn.ids))
            elif record.method == method:
                drafts = [
                    Counter(root_paths(tree["tokens"], tree["parents"])) for tree in turn.trees
                ]
                played.append(Played(turn.accept, turn.proposed, drafts))
    return turns, played


def _copies(seed: int) -> list[CaseRecord]:
    """Made-up conversations that repeat themselves, from alphabets of 4 to 20 tokens: ties and
    evictions abound.
    """
    rng = random.Random(seed)
    records = []
    for case, alphabet in enumerate((4, 6, 9, 20)):
        context, turns = list[int](), list[TurnRecord]()
        for size in (30, 90, 30, 90):  # prompt, answer, prompt, answer
            ids = [rng.randrange(40, 40 + alphabet) for _ in range(4)]
            while len(ids) < size:
                start = rng.randrange(len(ids))
                ids += (
                    ids[start : start + rng.randrange(1, 12)]
                    if rng.random() < 0.6
                    else [rng.randrange(40, 48)]
                )
            ids = ids[:size]
            if size == 90:
                turns.append(_turn(context, ids))
            context = context + ids
        records.append(
            CaseRecord(f"copies-{case}", "copies", "", VANILLA, 0, 100 + case, 0, "ok", turns)
        )
    return records


def _crafted() -> list[CaseRecord]:
    """Conversations made for one rule each.

    periods: a match that overlaps the suffix, and a shorter one that does not. fan: token 40 has 30
    followers; answers take the second most recent and what follows it, then the 26th. shares: 39 40
    stands there ten times, followed by 50 three times, and that by 43 once: by exactly a tenth.
    evicted: when the first of four answers goes, 41 and 43 have followed 42 once each, 43 the more
    recently. ties: two matches' drafts are worth exactly 2 tokens each. narrow: in the corpus 33 36
    is behind 30 31, but in a level that two nodes found before have filled.
    """
    fan = [token for three in range(60, 150, 3) for token in (40, three, three + 1, three + 2)]
    shares = [token for third in (41, 42, 43) for token in (39, 40, 50, third)]
    shares += [token for other in range(60, 66) for token in (39, 40, other)]
    turns = {
        "periods": ([42, 43, 40, 50, 50, 50, 40, 41, 42, 43, 40, 41, 42, 43], [40, 41, 42, 43, 40]),
        "fan-2": (fan, [40, 144, 145, 146, 40, 147, 148, 149, 51]),
        "fan-26": (fan, [40, 72, 73, 74, 40, 75, 76, 52]),
        "shares": ([*shares, 39], [40, 50, 43, 51]),
        "narrow": ([39, 30], [31, 33, 36, 38]),
        "ties": ([2001, 2002] * 3, [2001, 2002, 2001, 2002]),
        **{f"evicted-{place}": ([39], [42, token]) for place, token in enumerate((41, 41, 43, 42))},
    }
    return [
        CaseRecord(name, "crafted", "", VANILLA, 0, 200 + place, 0, "ok", [_turn(*turn)])
        for place, (name, turn) in enumerate(turns.items())
    ]


def _turn(prompt: list[int], ids: list[int]) -> TurnRecord:
    ones = [1] * (len(ids) - 1)
    return TurnRecord(
        len(prompt), ids, "length", ones, ones, ones, ones, 0.0, 1.0, {}, prompt_ids=prompt
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Trace:
    """The bundled model's answers to one question of each task, and made-up conversations before
    them.
    """
    folder = tmp_path_factory.mktemp("twins")
    live = job_for(
        "method=[]", "suite=mini", "suite.limit=1", "decode.max_new_tokens=96", "measure=quick"
    )
    execute(live, folder / "live", lambda *_: None)
    lines = [record.to_json() for record in read_run(folder / "live").records if record.round == 0]
    path = folder / "trace.jsonl"
    path.write_text(
        "\n".join([*(record.to_json() for record in [*_crafted(), *_copies(5)]), *lines]) + "\n"
    )
    build_automaton(documents(), EOS, VOCAB, 8).save(folder / STATIC, VOCAB)
    return Trace(path, "model.tokenizer=bundled:tiny")


@pytest.fixture(scope="module")
def vicuna(data, tmp_path_factory) -> Trace:
    """Vicuna's answers to one question of each of Spec-Bench's six tasks."""
    folder = tmp_path_factory.mktemp("vicuna")
    source = data / "traces" / "vicuna-7b-v1.3" / "spec_bench_vanilla_run1.jsonl"
    tokenizer = f"model.tokenizer={data / 'tokenizers' / 'vicuna'}"
    job = job_for(
        "model=replay", f"model.trace={source}", tokenizer, "model.template=vicuna_v1.1",
        "suite=spec_bench", "suite.limit=1", "method=[]", "measure.warmup=0",
    )  # fmt: skip
    execute(job, folder / "whole", lambda *_: None)
    records = read_run(folder / "whole").records
    assert len({record.category for record in records}) == 6
    return Trace(folder / "whole" / "records.jsonl", tokenizer)


def _assert_twins(trace: Trace, variant: Variant) -> None:
    turns, harness = trace.harness(variant)
    twins = list(replay(turns, variant.twin(**variant.params), variant.reset))
    assert sum(map(len, (played.accept for played in twins))) > len(turns)
    assert sum(map(sum, (played.proposed for played in twins))) > 0
    for turn, ours, theirs in zip(turns, harness, twins, strict=True):
        for step, (here, there) in enumerate(zip(ours.drafts, theirs.drafts, strict=False)):
            context = turn.prompt + turn.answer[: 1 + sum(ours.accept[:step])]
            assert here == there, f"case {turn.case}, step {step}, context {context}"
        assert (ours.accept, ours.proposed) == (theirs.accept, theirs.proposed)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_drafts_what_its_twin_drafts(trace, variant):
    _assert_twins(trace, variant)


ANYWHERE = [each for each in VARIANTS if each.anywhere]
FIRST = list({each.method: each for each in reversed(ANYWHERE)}.values())  # one of each method


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(each, marks=[] if each in FIRST else pytest.mark.exhaustive)
        for each in ANYWHERE
    ],
    ids=lambda variant: variant.name,
)
def test_drafts_what_its_twin_drafts_on_real_answers(vicuna, variant):
    _assert_twins(vicuna, variant)


@pytest.mark.parametrize(
    ("variant", "mutant"), MUTANTS, ids=lambda value: getattr(value, "name", str(value))
)
def test_a_wrong_rule_is_distinguished(trace, variant, mutant):
    turns, harness = trace.harness(variant)
    wrong = replay(turns, variant.twin(**{**variant.params, **mutant}), variant.reset)
    assert any(
        (ours.accept, ours.proposed) != (theirs.accept, theirs.proposed)
        for ours, theirs in zip(harness, wrong, strict=True)
    )
