"""The methods and settings that are compared, and the wrong rules that must not pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

import specbench
from twins import chains, suffix, trees
from twins.loop import Route, Twin, text_of

TINY = Path(specbench.__file__).parent / "assets" / "tiny"
FROZEN = "bundled:tiny/frozen_table.safetensors"
VOCAB, EOS = 2048, 4
STATIC = "static.safetensors"  # an automaton that the tests build
DATASTORE = "bundled:tiny/datastore.safetensors"


@functools.cache
def frozen_table() -> dict[Route, list[Route]]:
    """The bundled frozen table: leader -> followers, the most frequent first."""
    file = load_file(TINY / "frozen_table.safetensors")
    followers = [tuple(ids) for ids in file["followers"].tolist()]
    starts = file["offsets"].tolist()
    return {
        tuple(ids): followers[starts[row] : starts[row + 1]]
        for row, ids in enumerate(file["leaders"].tolist())
    }


def documents() -> list[list[int]]:
    """The content of the static automaton: 60 texts of the bundled datastore, and an invented tree
    after 30 31.
    """
    file = load_file(TINY / "datastore.safetensors")
    borders = file["borders"].tolist()
    texts = [file["tokens"][start:end].tolist() for start, end in pairwise(borders[:61])]
    return [*texts, *([30, 31, *ends] for ends in ((32, 34), (32, 35), (33, 36), (33, 37)))]


@functools.cache
def corpus_of_sam() -> str:
    """Text of the static automaton: each document, then each token of the vocabulary; EOS ends them
    all.
    """
    each = [*documents(), *([token] for token in range(VOCAB))]
    return "".join(text_of(ids if ids[-1] == EOS else [*ids, EOS]) for ids in each)


def sam_twin(**params: Any) -> Twin:
    """SAM's twin with the static automaton."""
    return suffix.sam(corpus=corpus_of_sam(), **params)


@functools.cache
def corpus_of_rest() -> tuple[str, list[int]]:
    """Text and borders of the bundled datastore."""
    file = load_file(TINY / "datastore.safetensors")
    return text_of(file["tokens"].tolist()), file["borders"].tolist()


def rest_twin(**params: Any) -> Twin:
    """REST's twin on the bundled datastore."""
    return trees.rest(*corpus_of_rest(), **params)


def cacheback_twin(**params: Any) -> Twin:
    """Cacheback's twin with the bundled frozen table."""
    return trees.cacheback(frozen=frozen_table(), **params)


@dataclass(frozen=True)
class Variant:
    """A method under given settings, its twin under the same, and mutants: settings that make the
    twin wrong.

    harness: settings of the method that the twin has no need of, ``{folder}`` being the trace's.
    anywhere: it needs no file made for one tokenizer.
    """

    name: str
    method: str
    twin: Callable[..., Twin]
    params: Mapping[str, Any] = field(default_factory=dict)
    harness: Mapping[str, Any] = field(default_factory=dict)
    reset: str = "case"
    anywhere: bool = True
    mutants: tuple[Mapping[str, Any], ...] = ()

    def overrides(self) -> list[str]:
        """Of the command line."""
        given = {**self.params, **self.harness, "reset": self.reset}
        return [
            f"method=[{self.method}]",
            *(f"method.{self.method}.{key}={value}" for key, value in given.items()),
        ]


def _pld() -> list[Variant]:
    one = partial(Variant, method="pld", twin=chains.pld)
    return [
        one("pld", mutants=(
            {"num_draft": 9}, {"max_ngram": 2}, {"rule": "hf"}, {"rule": "recent"},
            {"shortest_first": True},
        )),
        one("pld-recent", params={"rule": "recent", "max_ngram": 4, "num_draft": 5}, mutants=(
            {"rule": "hf"}, {"num_draft": 6}, {"shortest_first": True},
        )),
        one("pld-vllm", params={"rule": "hf", "max_ngram": 7, "num_draft": 20, "min_ngram": 3},
        mutants=(
            {"min_ngram": 2}, {"min_ngram": 4},
        )),
    ]  # fmt: skip


def _sam() -> list[Variant]:
    one = partial(Variant, method="sam", twin=suffix.sam)
    both = partial(
        Variant,
        method="sam",
        twin=sam_twin,
        harness={"static": f"{{folder}}/{STATIC}"},
        anywhere=False,
    )
    return [
        one("sam", mutants=(
            {"latest": True}, {"through_root": True}, {"alpha": 4.5}, {"n_predicts": 39},
            {"shorter": True},
        )),
        both("sam-static", mutants=(
            {"corpus_first": True}, {"len_bias": 1},
        )),
        both("sam-static-narrow", params={"children": 2},
        mutants=({"children": 1}, {"children": 3}, {"wide": True})), both("sam-static-bias",
        params={"len_bias": 2, "children": 2, "n_predicts": 20}, mutants=(
            {"len_bias": 1}, {"len_bias": 3},
        )),
    ]  # fmt: skip


def _n_grammys() -> list[Variant]:
    one = partial(
        Variant, method="n_grammys", twin=chains.n_grammys, harness={"strategy": "context"}
    )
    return [
        one("n_grammys", mutants=(
            {"k": 9}, {"w": 9}, {"q": 2}, {"short_tails": True}, {"verify": "trie"},
        )),
        one("n_grammys-lexicographic", params={"k": 4, "w": 3, "ties": "lexicographic"}, mutants=(
            {"ties": "recent"}, {"w": 4}, {"latest_first": True},
        )),
        one("n_grammys-trie", params={"k": 3, "w": 4, "q": 2, "verify": "trie"}, mutants=(
            {"k": 4}, {"verify": "batch"}, {"q": 1},
        )),
    ]  # fmt: skip


def _suffix_decoding() -> list[Variant]:
    # the reference's order is tested against its loops, in test_suffix_decoding
    recent = {"ties": "recent"}
    local = partial(
        Variant, method="suffix_decoding_local", twin=suffix.suffix_decoding, harness=recent
    )
    whole = partial(
        Variant,
        method="suffix_decoding",
        twin=suffix.suffix_decoding,
        harness=recent,
        reset="never",
    )
    short = {
        "num_draft": 8,
        "factor": 1.5,
        "offset": 1.0,
        "min_prob": 0.3,
        "depth": 10,
        "shape": "tree",
    }
    return [
        local("suffix_decoding_local", mutants=(
            {"shorter_wins": True}, {"oldest_child": True}, {"end_uncounted": True},
            {"offset": 1.0}, {"min_prob": 0.4}, {"shape": "tree"},
        )),
        local("suffix_decoding_local-tree", params={"factor": 3.0, "shape": "tree"}, mutants=(
            {"shape": "path"}, {"oldest_child": True}, {"num_draft": 15},
        )),
        local("suffix_decoding_local-short", params=short, mutants=(
            {"depth": 9}, {"depth": 11}, {"offset": 0.0},
        )),
        whole("suffix_decoding", params={"global_tree": True}, mutants=(
            {"global_tree": False}, {"prompts_too": True}, {"global_first": True},
            {"finished_only": True},
        )),
        whole("suffix_decoding-tree", params={"global_tree": True, "factor": 2.0, "shape": "tree"},
        mutants=(
            {"shape": "path"}, {"prompts_too": True}, {"oldest_child": True},
        )),
        whole("suffix_decoding-cached-3", params={"global_tree": True, "cached_requests": 3},
        mutants=(
            {"cached_requests": 2}, {"cached_requests": 4},
        )),
    ]  # fmt: skip


def _ssd() -> list[Variant]:
    one = partial(
        Variant, method="ssd", twin=chains.ssd, harness={"max_matches": 10**6}, reset="never"
    )
    few = {"query_length": 4, "min_query": 2, "draft_length": 5, "rebuild_every": 3}
    return [
        one("ssd", mutants=(
            {"draft_length": 9}, {"min_query": 2}, {"query_length": 2}, {"oldest_of_equals": True},
            {"vote": "prefix"}, {"latest_hit": True}, {"across": True}, {"stale": 1},
            {"shortest_first": True}, {"answers_only": True},
        )),
        one("ssd-case", reset="case", mutants=({"stale": 1}, {"draft_length": 11})),
        one("ssd-few", params=few,
        mutants=({"rebuild_every": 2}, {"min_query": 1}, {"draft_length": 4})),
        one("ssd-background", twin=partial(chains.ssd, stale=1),
            harness={"max_matches": 10**6, "rebuild": "background"},
            mutants=({"stale": 0}, {"stale": 2})),
        one("ssd-ring", params={"buffer_tokens": 300},
        mutants=({"buffer_tokens": 290}, {"buffer_tokens": 10**6})), one("ssd-prefix",
        params={"vote": "prefix"}, mutants=({"vote": "whole"}, {"oldest_of_equals": True})),
    ]  # fmt: skip


def _cacheback() -> list[Variant]:
    plain = partial(Variant, method="cacheback_no_frozen", twin=trees.cacheback, reset="turn")
    dual = partial(Variant, method="cacheback", twin=cacheback_twin, reset="turn", anywhere=False)
    small = {
        "follower_length": 2,
        "follower_capacity": 3,
        "total_draft_length": 40,
        "chaining_reserve": 0,
    }
    scarce = {
        **small,
        "leader_length": 2,
        "leader_capacity": 12,
        "total_draft_length": 30,
        "chaining_reserve": 7,
    }
    file = {"frozen": FROZEN}
    return [
        plain("cacheback_no_frozen", mutants=(
            {"total_draft_length": 95}, {"chaining_reserve": 19},
            {"accounting": "kept"}, {"growth": "merged"}, {"late": 1}, {"fifo": True},
            {"oldest_first": True}, {"follower_length": 4}, {"last_child_first": True},
        )),
        plain("cacheback_no_frozen-kept", params={"accounting": "kept"},
        mutants=({"accounting": "refeed"},)), plain("cacheback_no_frozen-merged",
        params={"growth": "merged"}, mutants=({"growth": "reference"},)),
        plain("cacheback_no_frozen-leader-2", params={"leader_length": 2}, mutants=(
            {"leader_length": 1}, {"leader_length": 3},
        )),
        plain("cacheback_no_frozen-small", params=small, mutants=(
            {"follower_capacity": 2}, {"follower_capacity": 4},
        )),
        plain("cacheback_no_frozen-scarce", params=scarce, mutants=(
            {"query_is_no_use": True}, {"fifo_leaders": True}, {"leader_capacity": 11},
            {"leader_capacity": 13},
        )),
        plain("cacheback_no_frozen-never", reset="never", mutants=({"oldest_first": True},)),
        dual("cacheback", harness=file, mutants=(
            {"frozen_first": True}, {"tables": "dynamic"}, {"tables": "frozen"},
            {"frozen_growth": "after_tree"},
        )),
        dual("cacheback-merged-kept", harness=file,
        params={"growth": "merged", "accounting": "kept"}, mutants=(
            {"growth": "reference"}, {"accounting": "refeed"},
        )),
        dual("cacheback-after-tree", harness=file, params={"frozen_growth": "after_tree"}, mutants=(
            {"frozen_growth": "node"},
        )),
        dual("cacheback_only_frozen", method="cacheback_only_frozen", params={"tables": "frozen"},
        harness=file,
             mutants=({"tables": "dual"}, {"total_draft_length": 93})),
    ]  # fmt: skip


def _rest() -> list[Variant]:
    one = partial(Variant, method="rest", twin=rest_twin, anywhere=False)
    file = {"datastore": DATASTORE, "max_matches": 10**6}
    first = {"max_matches": 30, "nodes": 30, "cut": "reference"}
    return [
        one("rest", harness=file, mutants=(
            {"nodes": 63}, {"depth": 9},
            {"last_of_equals": True}, {"deeper_first": True}, {"shortest_first": True},
            {"cross_documents": False},
        )),
        one("rest-reference", harness=file, params={"cut": "reference"}, mutants=(
            {"cut": "paper"}, {"frequent_goes": True},
        )),
        one("rest-borders", harness=file, params={"cross_documents": False},
        mutants=({"cross_documents": True},)), one("rest-first",
        harness={"datastore": DATASTORE, "subset": "first"}, params=first, mutants=(
            {"max_matches": 29}, {"corpus_order": True}, {"nodes": 29},
        )),
    ]  # fmt: skip


VARIANTS = [*_pld(), *_sam(), *_n_grammys(), *_suffix_decoding(), *_ssd(), *_cacheback(), *_rest()]
