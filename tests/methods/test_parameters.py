"""A parameter that a method cannot take names itself, what it was and what was expected; so does a
draft too large.
"""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace

import pytest

from methods.cacheback import Cacheback
from methods.eagle.eagle import Eagle
from methods.hf_compiled import HFCompiled
from methods.hybrid import Hybrid
from methods.logit_spec import LogitSpec
from methods.lookahead import Lookahead
from methods.n_grammys import NGrammys
from methods.ngram_mod import NgramMod
from methods.opt_tree import OptTree
from methods.ouroboros import Ouroboros
from methods.pld import PromptLookup
from methods.rest import Rest
from methods.saguaro import Saguaro
from methods.sam import SAM
from methods.sequoia import Sequoia
from methods.specinfer import SpecInfer
from methods.speculative_sampling import SpeculativeSampling
from methods.ssd import Spacelike
from methods.suffix_decoding import SuffixDecoding
from methods.token_recycling import TokenRecycling
from specbench.types import InputError

RECYCLED = {"auxiliary": "token_recycling"}
RATES = [0.6, 0.2, 0.1]
# Of each: an option, and the words next to its name, the value and the expected values.
# tests/methods/test_bounds.py tries the bounds of every number.
REFUSED = {
    partial(Eagle, "random"): [({"sampling": "drawn"}, "a dynamic tree")],
    HFCompiled: [({"length": 4}, "expected a whole number from 5 to 16777216")],
    LogitSpec: [
        ({"ranks": [8, 8]}, ""),
        ({"lengths": [4, 3, 0]}, ""),
        ({"lengths": [4, 3]}, "expected 3"),
    ],
    NgramMod: [({"min_draft": 65}, "expected a whole number from 0 to 64")],
    partial(OptTree, "x"): [({"threshold": -0.1}, ""), ({"threshold": 1.0}, "")],
    PromptLookup: [
        ({"min_ngram": 4}, "expected a whole number from 1 to 3"),
        ({"max_ngram": 5, "rule": "ngram_cache"}, "expected at most 4"),
    ],
    Rest: [({"longest": 3, "shortest": 4}, "expected a whole number from 4 to 4096")],
    partial(Saguaro, "x", 4): [
        ({"fan_out": each}, "for each of 0 to 4") for each in ([], [1, 2], [65], [True])
    ],
    partial(SpecInfer, "x", expansion=[2]): [({"expansion": []}, ""), ({"expansion": [2, 0]}, "")],
    partial(Sequoia, "x", acceptance=RATES): [
        *(({"acceptance": each}, "") for each in ([], [0.9, 0.3], [0.0])),
        ({"nodes": 1, "acceptance": [0.0, 0.5]}, "makes a tree without a node"),
    ],
    partial(SpeculativeSampling, "x"): [
        ({"draft_temperature": 0.0}, ""),
        ({"draft_temperature": -1.0}, ""),
    ],
    Spacelike: [({"query_length": 2, "min_query": 3}, "expected a whole number from 3 to 4096")],
    SuffixDecoding: [
        ({"factor": -1.0}, "expected 0 to 4096"),
        ({"offset": -63.0}, "no match may draft a token"),
    ],
}
CASES = [(make, options, words) for make, found in REFUSED.items() for options, words in found]


@pytest.mark.parametrize(
    ("make", "options", "words"), CASES, ids=lambda each: str(each) if each else ""
)
def test_a_parameter_names_itself_and_what_was_expected(make, options, words):
    name, value = next(iter(options.items()))
    with pytest.raises(
        InputError, match=rf"^{name}={re.escape(str(value))}: .*{words or 'expected'}"
    ):
        make(**options)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Eagle("random", choices=[[2], [1]]), "choices: level 1 lists 1 nodes"),
        (lambda: Hybrid({}), "members: none"),
        (lambda: SAM(**RECYCLED), "tree: not set with auxiliary=token_recycling"),
        (lambda: SAM(tree=[[2]]), "tree: set with auxiliary=none"),
        (lambda: TokenRecycling(k=3, tree=[[2], [1]]), "level 1 lists 1 nodes; expected 2"),
        (lambda: TokenRecycling(k=3, tree=[[9]]), "from 0 to 3"),
        (lambda: TokenRecycling(k=3, tree=[[0]]), "no node"),
    ],
)
def test_a_tree_that_is_none_is_named(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("method", "most", "words"),
    [
        (Cacheback(tables="dynamic", total_draft_length=19), 256, "total_draft_length=19"),
        (
            Lookahead(5, 7, 7, "kept"),
            54,
            r"up to 55 nodes; expected at most engine\.max_nodes=54.*=55",
        ),
        (NGrammys(k=25, w=14), 256, r"25, w=14: a draft has up to 350 nodes.*engine.max_nodes=256"),
        (Ouroboros("x"), 34, r"^gamma=12, level=7, endings=3: a draft has up to 35 nodes"),
        (
            SpecInfer("x", [20, 20]),
            256,
            r"^expansion=\[20, 20\]: a draft has up to 420 nodes.*engine\.max_nodes=256",
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_draft_that_the_engine_cannot_hold_is_refused(method, most, words):
    with pytest.raises(InputError, match=words):
        method.bind(SimpleNamespace(max_nodes=most, model=None))


def test_a_draft_that_just_fits_is_taken():
    Cacheback(tables="dynamic", total_draft_length=20).bind(SimpleNamespace(max_nodes=256))
    Lookahead(5, 7, 7).bind(SimpleNamespace(max_nodes=27 + 21))
