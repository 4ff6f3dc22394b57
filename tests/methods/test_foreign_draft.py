"""Draft models of another vocabulary: what is shared, what is drafted, and that the target's
distribution stays.
"""

from __future__ import annotations

import pytest
import torch

from builders.models import VOCAB, build, plain_greedy
from draft_models import (
    MarkovLM,
    begin,
    draft_behind,
    fitted,
    keeps_the_distribution,
    markov_tables,
    noisy,
    plain_logits,
    run,
)
from methods.foreign_draft import ForeignDraft, Vocabularies
from specbench.decode.sampling import Sampling
from specbench.models.load import read_card
from specbench.types import InputError


class Words:
    """A tokenizer of given words, cut greedily; what no word begins is left out."""

    eos_token_id = None

    def __init__(self, *words: str) -> None:
        self.words = words

    def get_vocab(self):
        return {word: place for place, word in enumerate(self.words)}

    def convert_ids_to_tokens(self, ids):
        return [self.words[each] for each in ids]

    def decode(self, ids, skip_special_tokens=False):
        return "".join(self.words[each] for each in ids)

    def encode(self, text, add_special_tokens=True):
        found = []
        while text:
            fit = [word for word in self.words if text.startswith(word)]
            found += [self.words.index(max(fit, key=len))] if fit else []
            text = text[len(max(fit, key=len)) if fit else 1 :]
        return found


def test_shared_tokens_their_translation_and_a_text_cut_anew():
    both = Vocabularies(Words("a", "b", "ab", "c"), Words("b", "x", "a"))
    assert both.shared == {0: 2, 1: 0}
    assert both.translate([1, 2, 0]) == [0, 2, 0, 2]  # ab is the draft's a and b
    assert both.translate([3]) == []  # c is nothing that the draft can say
    signs = Vocabularies(Words("Ġ", "Ġhi", "hi"), Words("▁hi", "hi", "▁"))
    signs.draft.encode = lambda text, add_special_tokens=True: [2] if text == " " else []
    signs.target.encode = lambda text, add_special_tokens=True: [0] if text == " " else []
    assert Vocabularies(signs.target, signs.draft).shared == {0: 2, 1: 0, 2: 1}
    assert both.recut([3], [2, 0]) == [2]  # c, a b -> c, ab
    assert both.recut([0], [0]) == [1]  # a, b would be ab together: then the text alone


def permuted(missing: int, seed: int = 0):
    """Vocabularies of VOCAB tokens in another order, ``missing`` of which are not shared."""
    order = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed)).tolist()
    names = [f"<{place}>" for place in range(VOCAB)]
    return Vocabularies(
        Words(*names), Words(*(f"[{at}]" if at < missing else names[at] for at in order))
    )


def method_with(draft, sampling=None, both=None, **options) -> ForeignDraft:
    method = ForeignDraft("unused", **{"length": 4, "schedule": "fixed", **options})
    method.vocabularies = both or permuted(20)
    return fitted(method, draft, sampling)


def test_a_chain_is_the_drafts_best_shared_tokens_and_the_output_the_targets(model):
    model, both = build("llama", torch.float64), permuted(20)
    ids = [30 + place * 7 % 90 for place in range(30)]
    drafter = begin(method_with(model, both=both), ids[:20])
    for end in (20, 21, 25):
        chain = [int(token) for token in drafter.propose(ids[:end], 64).tokens]
        text = [both.shared[token] for token in ids[:end]]
        every = []
        for token in chain:
            logits = plain_logits(model, text)
            every.append(int(logits.argmax()))
            allowed = {ours: float(logits[theirs]) for ours, theirs in both.shared.items()}
            assert token == max(allowed, key=allowed.__getitem__)
            text.append(both.shared[token])
        assert every != chain  # the wrong variant: ids that are not translated
    for match in ("token", "string"):
        assert run(model, method_with(noisy(model, 0.1), match=match)).ids == plain_greedy(
            model, [5, 6, 7], 61
        )
        out = run(model, method_with(model, both=permuted(0, seed=1), match=match), limit=20)
        assert out.ids == plain_greedy(model, [5, 6, 7], 20)
    same = Vocabularies(*[Words(*(f"<{place}>" for place in range(VOCAB)))] * 2)
    for match in ("token", "string"):
        assert set(run(model, method_with(model, both=same, match=match), limit=21).accept) == {5}


@pytest.mark.parametrize(
    ("match", "wrong"),
    [
        ("token", False),
        pytest.param("string", False, marks=pytest.mark.exhaustive),
        ("token", True),
    ],
    ids=["token", "string", "token, what is not shared stated too, the wrong variant"],
)
def test_sampled_strings_keep_the_targets_distribution(monkeypatch, match, wrong):
    target, draft = markov_tables()
    both = Vocabularies(Words("a", "b", "c", "d", "e"), Words("d", "x", "b", "y", "a"))
    if wrong:
        monkeypatch.setattr(ForeignDraft, "pad_probs", lambda self, probs: 0.4 * probs + 0.12)
    method = ForeignDraft("unused", match=match, length=3, schedule="fixed")
    method.vocabularies = both
    assert method.draws == (match == "token")
    p_value = keeps_the_distribution(method, Sampling(1.0), target, draft)
    assert p_value < 1e-6 if wrong else p_value > 1e-3


def test_a_string_is_cut_to_the_budget_and_ends_at_the_drafts_eos():
    table = torch.full((5, 5), 0.0, dtype=torch.float64)
    for token in range(5):
        table[token, (token + 1) % 5] = 5.0
    both = Vocabularies(Words("a", "b", "c", "d", "e"), Words("a", "b", "c", "d", "e"))
    method = ForeignDraft("unused", match="string", length=3)
    method.vocabularies = both
    fitted(method, MarkovLM(table), vocab=5)
    assert list(draft_behind(method, [0, 0]).tokens) == [1, 2, 3]
    assert list(draft_behind(method, [0, 0], 2).tokens) == [1, 2]
    method.draft_eos = 2
    assert list(draft_behind(method, [0, 0]).tokens) == [1, 2]


def test_vocabularies_without_a_common_token_are_refused(monkeypatch):
    monkeypatch.setattr(Vocabularies, "translate", None)
    method = ForeignDraft("bundled:tiny_draft")
    card = read_card(path="bundled:tiny", name="tiny", device="cpu")
    method.check(card)
    assert len(method.vocabularies.shared) == 2048
    monkeypatch.setattr(
        "methods.foreign_draft._marked", lambda tokenizer, sign: {str(id(tokenizer)): 0}
    )
    with pytest.raises(
        InputError, match=r"^draft=bundled:tiny_draft: shares no token with model=tiny"
    ):
        method.check(card)
