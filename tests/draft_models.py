"""Draft models of adjustable quality: the target itself plus noise on every weight, and a method
around one.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from transformers import AutoConfig

from builders.models import VOCAB
from joint_law import MarkovEngine, emitted, exact, p_value
from methods.card import Card
from methods.opt_tree import OptTree
from methods.ouroboros import Ouroboros
from methods.pard import Pard
from methods.parts.draft_lm import DraftLM
from methods.parts.draft_method import TargetTraits
from methods.pearl import Pearl
from methods.saguaro import Saguaro
from methods.sequoia import Sequoia
from methods.specinfer import SpecInfer
from methods.speculative_sampling import SpeculativeSampling
from specbench.decode.loop import Request, decode
from specbench.decode.together import SharedRequest, draft_on
from specbench.measure.clock import Clock
from specbench.models.eager.engine import EagerEngine
from specbench.types import EMPTY, Prefill

CONTEXT = 512
# Every method with a draft model, small; PARD's draft would have to be trained for it.
MAKE = {
    "speculative_sampling": lambda **options: SpeculativeSampling("unused", length=4, **options),
    "pard": lambda **options: Pard("unused", length=4, mask_token=3, **options),
    "specinfer": lambda **options: SpecInfer("unused", [2, 1, 2], **options),
    "sequoia": lambda **options: Sequoia("unused", [0.6, 0.2], nodes=10, depth=3, **options),
    "opt_tree": lambda **options: OptTree(
        "unused", nodes=10, threshold=0.1, max_depth=3, **options
    ),
    "ouroboros": lambda **options: Ouroboros(
        "unused", gamma=4, window=4, level=4, endings=2, **options
    ),
}
PARALLEL = {
    "pearl": lambda **options: Pearl("unused", gamma=3, **options),
    "saguaro": lambda **options: Saguaro("unused", length=3, fan_out=[2], **options),
    "card": lambda **options: Card("unused", nodes_per_layer=6, ratio=3, **options),
    "card-waits": lambda **options: Card(
        "unused", nodes_per_layer=6, ratio=3, wait=True, **options
    ),
    "card-queries": lambda **options: Card(
        "unused", nodes_per_layer=6, ratio=3, correct=False, max_depth=8, **options
    ),
    "card-shallow": lambda **options: Card(
        "unused", nodes_per_layer=4, children=2, ratio=5, max_depth=3, **options
    ),
}


def noisy(model, epsilon: float, seed: int = 1):
    """A copy of ``model`` with noise of ``epsilon`` standard deviations on every weight; 0 is the
    model itself.
    """
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for weight in draft.parameters():
        weight.data += (
            torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            * epsilon
            * weight.std()
        )
    return draft


def fitted(method, draft, sampling=None, vocab: int = VOCAB, eos: frozenset[int] = frozenset()):
    """``method`` as ``bind`` leaves it, with ``draft`` for its draft model."""
    method.adopt(DraftLM(draft, CONTEXT), TargetTraits(vocab, eos, sampling, torch.device("cpu")))
    method.reset()
    return method


def run(
    model, method, prompt=(5, 6, 7), limit=61, sampling=None, seed=0, eos=frozenset(), max_nodes=64
):
    """The transcript of one request."""
    engine = EagerEngine(model, CONTEXT, eos, max_nodes)
    return decode(
        engine, method, Request(list(prompt), limit, sampling, seed), Clock(torch.device("cpu"))
    )


def transcript(out):
    """What does not depend on the machine."""
    stats = {key: value for key, value in out.stats.items() if not key.endswith(("_s", "_ms"))}
    return out.ids, out.accept, out.proposed, out.fed, stats


def begin(method, context, seed: int = 0):
    """A drafter that stands behind ``context``."""
    return method.begin(list(context[:-1]), Prefill(context[-1]), seed)


def draft_behind(method, context, budget: int = 64, seed: int = 0):
    """The draft behind ``context``."""
    return begin(method, context, seed).propose(list(context), budget)


@torch.inference_mode()
def plain_logits(model, ids):
    """(V,) logits after ``ids``: no cache, no mask of ours."""
    return model(torch.tensor([list(ids)]), use_cache=False).logits[0, -1]


class MarkovLM(torch.nn.Module):
    """A draft model whose logits after a token are its row of a (V, V) table, whatever came
    before.
    """

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table, self.dtype = table, table.dtype
        self.embedding = torch.nn.Embedding(len(table), 1)
        self.config = AutoConfig.for_model("llama")
        self.forwards = 0

    def get_input_embeddings(self):
        return self.embedding

    def forward(self, input_ids, past_key_values=None, logits_to_keep=0, **_):
        self.forwards += 1
        states = self.table.new_zeros(1, 1, input_ids.shape[1], 1)
        past_key_values.update(states, states, 0)
        return SimpleNamespace(logits=self.table[input_ids[:, -logits_to_keep:]])


def keeps_the_distribution(
    method, sampling, table, draft_table, prompt=(0,), length=3, draws=400
) -> float:
    """p-value: are the strings that ``method`` emits with a Markov draft the Markov target's
    own?
    """
    engine = MarkovEngine(table)
    fitted(method, MarkovLM(draft_table), sampling, vocab=len(table))
    found = emitted(engine, method, sampling, prompt, length, draws)
    return p_value(
        found, exact(lambda context: engine.distribution_after(context, sampling), prompt, length)
    )


def markov_tables(vocab: int = 5, seed: int = 3, spread: float = 1.5):
    """(target, draft): two tables of raw logits, (V, V) float64, alike but not the same."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(vocab, vocab, generator=generator, dtype=torch.float64) * spread
    return target, target + torch.randn(vocab, vocab, generator=generator, dtype=torch.float64)


def draft_together(drafters, contexts, budget=64):
    """The drafts of requests that share the forwards of their drafters; none of them fails."""
    asked, drafts = [SharedRequest(None) for _ in drafters], [EMPTY] * len(drafters)
    waiting = [(number, drafter.drafting(ids, budget), None)
               for number,
               (drafter, ids) in enumerate(zip(drafters, contexts, strict=True))]  # fmt: skip
    while waiting:
        waiting = draft_on(waiting, asked, drafts)
    assert [each.error for each in asked] == [None] * len(drafters)
    return drafts
