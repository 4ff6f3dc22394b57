"""The compiled forward of drafts on a CPU: torch's numbers, and the same bits for a row with any
other rows fed.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import random
import shutil
import subprocess
import sys
import weakref
from dataclasses import replace
from functools import cache
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.test_fast import any_draft

from builders.engines import COUNT, assert_greedy, decode_script, fast_engine, scripts, started
from builders.models import BASE, EVERY_FAMILY, SHAPES, VOCAB, build
from specbench.models import transfer
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.frame import accept, read_outcome
from specbench.models.fast.host import kernels
from specbench.types import CaseError, Draft, Needs

ROOT = Path(__file__).parents[2]
NEEDS = Needs(hidden=(0, 1, 2), node_topk=3)
EPSILON = {torch.float32: 1e-6, torch.bfloat16: 3e-2}  # relative, root mean square; of a few rows
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@cache
def compiled(family: str, name: str) -> FastEngine:
    engine = fast_engine(build(family, TYPES[name]))
    assert engine.compiled is not None
    return engine


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The root mean square of the differences, over that of the numbers."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-30))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_it_computes_what_torch_computes(family, name):
    """As near to double precision as torch: logits, hidden states, keys and values of trees, chains
    and roots alone.
    """
    model = build(family, TYPES[name])
    engines = [
        compiled(family, name),
        fast_engine(model, compiled=False),
        fast_engine(copy.deepcopy(model).double()),
    ]
    assert engines[1].compiled is None
    rng = random.Random(family + name)
    for prompt in ([5], list(range(20, 31)), list(range(20, 50))):  # around the window
        for draft in (
            Draft(),
            Draft.chain([7, 8, 9]),
            any_draft(rng, [3, 4, 5]),
            any_draft(rng, [9, 9, 9, 9]),
        ):
            for engine in engines:
                started(engine, prompt, NEEDS).forward(draft)
            cached = len(prompt) + len(draft) + 1
            found = [[engine.request.logits, *(engine.request.hidden[layer] for layer in (0, 1, 2)),
                      engine.cache.whole[:, :, :cached]] for engine in engines]  # fmt: skip
            for ours, theirs, truth in zip(*found, strict=True):
                assert relative(ours, truth) < 2 * relative(theirs, truth) + EPSILON[TYPES[name]]


def compare_bits(engine: FastEngine, prompt: list[int], draft: Draft, line: list[int]) -> None:
    """``line``: nodes of the draft, each the child of the one before."""
    tree = started(engine, prompt)
    tree.request.root = 11
    tree.forward(draft)
    tree = {node: tree.request.logits[node + 1].clone() for node in (-1, *line)}
    keys = engine.cache.whole[
        :, :, [len(prompt), *(len(prompt) + 1 + node for node in line)]
    ].clone()
    started(engine, prompt)
    for place, node in enumerate((-1, *line)):
        engine.request.root = 11 if node < 0 else int(draft.tokens[node])
        engine.forward(Draft())
        assert torch.equal(engine.request.logits[0], tree[node])
        engine.request.length += 1
        slot = len(prompt) + place
        assert torch.equal(engine.cache.whole[:, :, slot], keys[:, :, place])


def lines(parents: list[int]) -> list[int]:
    """The path to the last node."""
    path, node = [], len(parents) - 1
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@st.composite
def trees(draw) -> Draft:
    count = draw(st.integers(1, 40))
    parents = [draw(st.integers(max(-1, node - 4), node - 1)) for node in range(count)]
    return Draft([draw(st.integers(0, VOCAB - 1)) for _ in parents], parents)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("family", ["llama", "qwen2-mixed", "llama-80"])
@settings(max_examples=15)
@given(draft=trees(), length=st.integers(1, 40))
def test_a_row_has_the_same_bits_as_decoded_alone(family, name, draft, length):
    compare_bits(
        compiled(family, name), list(range(3, 3 + length)), draft, lines(list(draft.parents))
    )


@pytest.mark.parametrize("name", ["f32", pytest.param("bf16", marks=pytest.mark.exhaustive)])
@given(draft=trees(), data=st.data())
def test_it_accepts_what_torch_accepts(name, draft, data):
    """Outcome, keys and values, for picks that follow the tree half of the time; forced picks; not
    a number.
    """
    passenger = [data.draw(st.integers(0, 5)) == 0 for _ in draft.parents]
    draft = replace(draft, passenger=passenger)
    engine = started(compiled("llama", name), [5, 6, 7])
    engine.forward(draft)
    frame, moved = engine.request.frame, engine.request.moved
    logits = torch.randn(len(draft) + 1, VOCAB).to(TYPES[name])
    for node, parent in enumerate(draft.parents):
        if data.draw(st.booleans()):
            logits[parent + 1] = torch.where(torch.arange(VOCAB) == draft.tokens[node], 9.0, 1.0)
    if data.draw(st.integers(0, 9)) == 0:
        logits[data.draw(st.integers(0, len(draft))), 3] = math.nan
    before, found = engine.cache.whole.clone(), []
    for way in (accept, engine.compiled.accept):
        with torch.inference_mode():
            engine.cache.whole.copy_(before)
            outcome = torch.as_tensor(way(logits, frame, engine.cache, moved)).tolist()
        try:
            read = read_outcome(outcome, moved, TYPES[name])
        except CaseError:
            read = None
        kept = 4 + len(read[0] if read else ())
        found.append((read, engine.cache.whole[:, :, :kept].clone()))
    (theirs, moved_by_torch), (ours, moved_by_us) = found
    assert ours == theirs
    assert torch.equal(moved_by_us, moved_by_torch)


def test_torchs_forward_has_other_bits():
    """The check above finds products that depend on the number of rows."""
    engine = fast_engine(build("llama"), compiled=False)
    with pytest.raises(AssertionError):
        compare_bits(engine, list(range(3, 33)), Draft.chain(list(range(20))), list(range(20)))


@pytest.mark.parametrize("family", ["llama", "mistral-window"])
def test_bfloat16_emits_vanillas_ids_for_every_drafter(family):
    """By equal bits: there is no tie that a wider forward could break."""
    engine = compiled(family, "bf16")
    plain = decode_script(engine, lambda *_: Draft(), [5, 17, 3], COUNT).ids
    for name, script in scripts([*plain, *range(8)]).items():
        assert decode_script(engine, script, [5, 17, 3], COUNT).ids == plain, name


@pytest.mark.exhaustive
def test_threads_give_the_same_bits():
    engine, before, found = compiled("llama", "f32"), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            started(engine, list(range(30))).forward(Draft.chain(list(range(9))))
            found.append(engine.request.logits.clone())
            assert threads == 1 or numba.get_num_threads() == min(
                threads, numba.config.NUMBA_NUM_THREADS
            )
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_leaving_accepted_nodes_where_they_were_drafted_is_caught(monkeypatch):
    model, real = build("llama"), kernels.accept
    engine = fast_engine(model)
    assert_greedy(engine, model, [5, 6], COUNT)
    monkeypatch.setattr(
        kernels, "accept", lambda *given: real(*given[:6], given[6][:0], *given[7:])
    )
    with pytest.raises(AssertionError):
        assert_greedy(engine, model, [5, 6], COUNT)


@pytest.mark.parametrize("name", TYPES)
def test_products_of_any_shape_have_the_bits_of_each_row_alone(name):
    """Rows of weights that do not fill a tile, or leave threads without a share; rows of inputs,
    whole or in slices.
    """
    torch.manual_seed(0)
    for outputs, size in itertools.product((1, 3, 7, 18, 35), (32, 96, 1120)):
        weight, rows = (
            torch.randn(outputs, size).to(TYPES[name]),
            torch.randn(20, size).to(TYPES[name]),
        )
        given, stored = rows.float().numpy(), transfer.stored(weight)
        alone = np.full((20, outputs), np.nan, np.float32)
        for row in range(20):
            kernels.multiply_rows(
                given[row : row + 1], weight.data_ptr(), stored, alone[row : row + 1], None
            )
        assert relative(torch.from_numpy(alone), rows.double() @ weight.double().T) < 1e-5
        for count, threads in itertools.product((1, 2, 3, 4, 5, 6, 8, 9, 11, 20), (None, 3)):
            together = np.full((count, outputs), np.nan, np.float32)
            kernels.multiply_rows(given[:count], weight.data_ptr(), stored, together, threads)
            assert np.array_equal(together, alone[:count])


@pytest.mark.parametrize("largest", [1.0, 0.0, float("inf")])
def test_the_peak_is_the_first_place_that_torch_finds(largest):
    """Also if equal peaks are in several blocks, and where zeros have two signs, which are
    equal.
    """
    numbers = np.full(3 * kernels.BLOCK, -1.0, np.float32)
    numbers[[2, kernels.BLOCK + 5, 2 * kernels.BLOCK]] = (
        -0.0 if largest == 0 else largest,
        largest,
        largest,
    )
    found, place = kernels.find_peak(numbers)
    assert (found, place) == (largest, 2)
    assert int(torch.from_numpy(numbers).argmax()) == 2


@pytest.mark.parametrize("strange", [-1, VOCAB])
def test_an_id_without_an_embedding_is_found(strange):
    """As torch finds it: no memory beyond the table is read."""
    engine = compiled("llama", "f32")
    with pytest.raises(IndexError, match="no row in the embedding"):
        started(engine, [5, strange])
    with pytest.raises(IndexError, match="no row in the embedding"):
        started(engine, [5, 6]).forward(Draft.chain([7, strange]))


def test_a_position_behind_the_context_is_found():
    """Neither a prompt nor a step reads rotations beyond the table, or writes slots that there are
    not.
    """
    engine = FastEngine(build("llama"), 40, frozenset(), 8)
    with pytest.raises(IndexError, match="no row in the table of rotations"):
        started(engine, [5] * 60)
    started(engine, [5] * 45).forward(Draft.chain([6, 7]))
    engine.settle(COUNT)
    engine.request.length = 60
    with pytest.raises(IndexError, match="no row in the table of rotations"):
        engine.forward(Draft.chain([6, 7]))


def test_rows_beyond_a_block_have_the_same_bits():
    """They attend in blocks, in scratch of one block."""
    ids = [place * 7 % VOCAB for place in range(kernels.ROWS + 40)]
    engine, logits = FastEngine(build("mistral-window"), 512, frozenset(), 128), []
    for first in (1, 60):
        started(engine, ids[:first]).request.root = ids[first]
        engine.forward(Draft.chain(ids[first + 1 :]))
        logits.append(engine.request.logits[60 - first :].clone())
    assert torch.equal(*logits)


def test_a_layer_asked_for_twice_is_tapped_once():
    engine = compiled("llama", "f32")
    found = []
    for taps in ((0, 1, 2), (1, 1, 0, 2, 2)):
        started(engine, [5, 6], Needs(hidden=taps)).forward(Draft.chain([7]))
        found.append(engine.request.hidden)
    assert all(torch.equal(found[0][layer], found[1][layer]) for layer in (0, 1, 2))


def test_a_cache_that_moves_is_freed_first():
    engine = started(compiled("llama", "bf16"), [5, 6])
    engine.forward(Draft())
    reference = weakref.ref(engine.cache.whole)
    engine.cache.reserve(engine.cache.capacity + 1)
    assert reference() is None


@pytest.mark.parametrize(
    ("extra", "dtype", "reason"),
    [
        ({"hidden_size": 80, "head_dim": 16}, torch.float32, "80 numbers, not a multiple of 32"),
        (
            {"num_attention_heads": 8, "num_key_value_heads": 2},
            torch.float32,
            "a head has 8 numbers",
        ),
        ({}, torch.float16, "the model is float16"),
        ({"attention_bias": True}, torch.float32, "have a bias"),
    ],
)
def test_what_it_cannot_run_torch_computes(extra, dtype, reason, monkeypatch):
    monkeypatch.setitem(SHAPES, "odd", ("llama", extra))
    engine = fast_engine(build("odd", dtype))
    assert engine.compiled is None
    assert reason in engine.uncompiled
    assert fast_engine(build("llama"), compiled=False).uncompiled is None


@pytest.mark.exhaustive
def test_without_a_folder_for_compiled_code_torch_computes(tmp_path):
    """As an installation of another user, started without a home: in a process of its own, from
    files without cache.
    """
    shutil.copytree(
        ROOT / "specbench",
        tmp_path / "specbench",
        ignore=shutil.ignore_patterns("__pycache__", "assets"),
    )
    code = (
        "import torch, transformers\n"
        "from specbench.models.fast.engine import FastEngine\n"
        f"config = transformers.AutoConfig.for_model('llama', **{BASE!r})\n"
        "model = transformers.AutoModelForCausalLM.from_config(config).eval()\n"
        "print(FastEngine(model, 64, frozenset(), 8).describe_forward())\n"
    )
    # Root writes anywhere, so the folders are ones that nobody can make.
    blocker = "import numba.core.caching as caching\ncaching.CacheImpl._locator_classes = []\n"
    done = subprocess.run(
        [sys.executable, "-c", blocker + code], cwd=tmp_path, capture_output=True, text=True,
        check=True
    ).stdout  # fmt: skip
    assert done.startswith("operations of torch, since numba has no folder for what it compiles")
    assert str(tmp_path) not in done


def test_it_is_of_what_numba_compiles_for(monkeypatch):
    """The environment may ask numba for less than the processor has, and for code in Python."""
    code = "from specbench.models.fast.host import vectors; print(vectors.LANES, vectors.PAIRED)"
    asked = {**os.environ, "NUMBA_CPU_NAME": "generic"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=asked,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["8", "False"]
    monkeypatch.setattr(kernels, "forward", kernels.forward.py_func)
    assert "numba compiles nothing" in fast_engine(build("llama")).uncompiled
