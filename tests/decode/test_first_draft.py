"""decode.first_draft=prefill: the first draft hangs below the prompt's last token and is verified
with it.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from builders.runs import job_for
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.method import Drafter, Method
from specbench.models.replay import ReplayEngine
from specbench.records.record import VANILLA
from specbench.records.store import read_run
from specbench.report.exchange.spec_bench import answers_of
from specbench.report.frames.facts import read_facts
from specbench.runs.execution import execute
from specbench.types import CaseError, Draft, InputError
from twins.variants import TINY

FEW = (
    "suite=mini",
    "suite.limit=1",
    "suite.first=2",
    "decode.max_new_tokens=24",
    "measure=quick",
    "measure.warmup=0",
)
SMALL = (
    "method.token_recycling.tree=[[2],[1,1]]",
    "method.token_recycling.k=2",
    "measure.keep_trees=9",
)


class _Scripted(Method):
    """Drafts what ``script`` says of the number of emitted tokens; ``seen``: the contexts it was
    asked about.
    """

    def __init__(self, prompt, script):
        self.prompt, self.script, self.seen = prompt, script, []

    def begin(self, prompt, prefill, seed):
        method = self

        class Asked(Drafter):
            def propose(self, context, budget):
                method.seen.append(list(context))
                return Draft.chain(method.script[len(context) - len(method.prompt)])

        assert prefill.given
        assert [*prompt, prefill.token] == method.prompt
        return Asked()


def replay(prompt, answer, script, eos=()):
    engine = ReplayEngine(frozenset(eos), 16)
    engine.load(prompt[:-1], [*prompt[-1:], *answer])
    method = _Scripted(prompt, script)
    request = Request(prompt, len(answer), None, 0, in_prefill=True)
    return decode(engine, method, request, Clock(torch.device("cpu"))), method


def test_integer_example():
    """The prompt's forward accepts 7 8 and emits 9; then one of two is right, and the end cuts the
    last draft.
    """
    done, method = replay([5, 6], [7, 8, 9, 7, 8, 9], {0: [7, 8, 1], 3: [7, 9], 5: [9, 9]})
    assert (done.ids, done.accept, done.fed, done.proposed) == (
        [7, 8, 9, 7, 8, 9],
        [3, 2, 1],
        [4, 3, 3],
        [3, 2, 2],
    )
    assert method.seen == [[5, 6], [5, 6, 7, 8, 9], [5, 6, 7, 8, 9, 7, 8]]


def test_an_eos_in_the_prompt_or_in_the_first_step():
    done, _ = replay([5, 2], [7, 2], {0: [7, 2, 9]}, eos=[2])
    assert (done.ids, done.accept, done.finish) == ([7, 2], [2], "eos")


def test_a_prompt_of_one_token_is_refused():
    with pytest.raises(CaseError, match="prompt of 1 token"):
        replay([5], [7], {0: []})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(settings) -> the run of these methods on the bundled model."""
    done = {}

    def run(*settings):
        if settings not in done:
            folder = tmp_path_factory.mktemp("first")
            execute(job_for(*settings), folder, lambda *_: None)
            done[settings] = read_run(folder)
        return done[settings]

    return run


PREFILL = (
    "decode.first_draft=prefill",
    "method=[pld,suffix_decoding,cacheback_no_frozen,token_recycling]",
    *FEW,
    *SMALL,
)


def turns_of(run, method):
    return {
        record.case: turn
        for record in run.records
        if record.method == method
        for turn in record.turns
    }


def test_ids_are_vanillas_and_every_token_is_a_steps(runs):
    here, usual = runs(*PREFILL), runs("method=[]", *FEW)
    for record in here.records:
        assert record.status == "ok", record.error
        assert record.lossless.violations == 0
        for turn in record.turns:
            assert turn.in_prefill
            assert sum(turn.accept) == len(turn.ids)
        if record.method == VANILLA:
            assert [turn.ids for turn in record.turns] == [
                turn.ids for other in usual.records if other.case == record.case
                for turn in other.turns
            ]  # fmt: skip
            assert all(set(turn.accept) == {1} for turn in record.turns)
    assert not any(turn.in_prefill for record in usual.records for turn in record.turns)


def test_sampling_emits_vanillas_ids(runs):
    sampled = (*FEW, "suite.first=1", "decode=sample", "decode.max_new_tokens=24")
    here, usual = (
        runs("method=[pld]", *sampled, "decode.first_draft=prefill"),
        runs("method=[]", *sampled),
    )
    assert [
        [turn.ids for turn in record.turns] for record in here.records if record.method == "pld"
    ] == [
        [turn.ids for turn in record.turns] for record in usual.records if record.method == VANILLA
    ]


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        (["model=replay"], ["pld", "suffix_decoding", "cacheback_no_frozen"]),
        (["model=tiny", "engine=timed", "measure=replay"], ["pld"]),
    ],
    ids=["replay", "timed"],
)
def test_a_record_leads_the_same_steps(runs, model, methods):
    live = runs(*PREFILL)
    trace = f"model.trace={live.directory / 'records.jsonl'}"
    again = runs(
        *model,
        trace,
        "measure.warmup=0",
        "decode.first_draft=prefill",
        f"method=[{','.join(methods)}]",
    )
    for method in methods:
        found, right = (
            {case: turn.accept for case, turn in turns_of(run, method).items()}
            for run in (again, live)
        )
        assert found == right


def recycled(model, prompt, count):
    """(accept, drafts) of Token Recycling's own loop: every forward, the prompt's too, has the tree
    and teaches it.
    """
    context, followers, accept, drafts = list(prompt), {}, [], []
    while len(context) < len(prompt) + count:
        first = followers.get(context[-1], [0, 0])
        paths = [
            [],
            [first[0]],
            [first[1]],
            *([token, followers.get(token, [0, 0])[0]] for token in first),
        ]
        tops = []
        for path in paths:
            logits = model(torch.tensor([context + path])).logits[0, -1]
            tops.append(logits.topk(2).indices.tolist())
        for path, top in zip(paths, tops, strict=True):
            followers[path[-1] if path else context[-1]] = top
        right, kept, picks = 0, 0, tops[0][0]
        for place, path in enumerate(paths):
            above = paths.index(path[:-1])
            if (
                path
                and path[-1] == tops[above][0]
                and len(path) == right + 1
                and (above == 0 or above == kept)
            ):
                right, kept, picks = len(path), place, tops[place][0]
        emitted = [*(paths[kept] if right else []), picks]
        emitted = emitted[: len(prompt) + count - len(context)]
        context += emitted
        accept.append(len(emitted))
        drafts.append([path[-1] for path in paths[1:]])
    return accept, drafts


def test_token_recycling_learns_from_the_prompts_forward(runs):
    run = runs(*PREFILL)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    asked = turns_of(run, VANILLA)
    some = 0
    with torch.inference_mode():
        for record in run.records:
            if record.method == "token_recycling" and len(record.turns) == 1:
                turn = record.turns[0]
                accept, drafts = recycled(model, asked[record.case].prompt_ids, len(turn.ids))
                assert turn.accept == accept
                assert [tree["tokens"] for tree in turn.trees] == drafts
                some += max(accept) > 1
    assert some


def test_spec_benchs_files_count_the_prompts_step_once(runs):
    for run in (runs(*PREFILL), runs("method=[]", *FEW)):
        answers = [*answers_of(run, read_facts(run), VANILLA, 0)]
        assert answers
        assert all(answer.accept_lengths == (1,) * answer.new_tokens for answer in answers)


def test_what_does_not_go_with_it_is_refused():
    with pytest.raises(
        InputError, match=r"decode\.first_draft=later: expected one of after, prefill"
    ):
        job_for("decode.first_draft=later", "method=[pld]")
    with pytest.raises(InputError, match="hf_generate: has a loop of its own"):
        job_for("decode.first_draft=prefill", "method=[hf_generate]")
