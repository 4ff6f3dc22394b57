"""N-Grammys (Stewart et al. 2024): a batch of k rows of w tokens, from n-grams of the context and
of the model itself.

The next token is seldom a cheap n-gram's first guess but often among its first k, so k guesses are
verified in one forward. Rows from the context come first; the model's own n-grams fill the rest:
what it predicts after one token, followed greedily, or its nearest output embeddings (section 4.1,
appendix B.1). Of these only the best token ids are stored.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from methods.parts.array_draft import ArrayDrafter
from methods.parts.branches import SOURCE, allocate_tree, copy_nodes, spell
from methods.parts.gram_table import GramTable, count_windows, list_followers
from methods.parts.parameters import Parameters, count
from specbench.method import Drafter, Method
from specbench.models.compiled_code import njit
from specbench.models.facade import ModelCard, Target
from specbench.records.store import write_atomically
from specbench.types import InputError, Needs, Prefill, Step, require_count, require_nodes

log = logging.getLogger(__name__)

FORMAT = "specbench token ids 1"
Measure = Literal["distance", "inner_product"]
BATCH_LOGITS = 2**25  # logits a forward, so that a batch fits next to any model
PROBES = 64
CHUNK = 8192  # embeddings at a time


def fingerprint(target: Target) -> str:
    """A digest of what a target computes: config, dtype, all embeddings' sums, logits of a few
    tokens.

    The logits pass every layer and the whole head. Hexadecimal; the same model on other hardware
    may give another.
    """
    probes = torch.linspace(0, target.vocab_size - 1, PROBES, device=target.device).long()
    device = target.device.type
    config = target.card.config.to_json_string()
    versions = f"{target.dtype} {device} {torch.__version__}"
    digest = hashlib.sha256(f"{config} {versions}".encode())
    for ids in torch.arange(target.vocab_size, device=target.device).split(CHUNK):
        digest.update(target.embed(ids).double().sum(-1).cpu().numpy().tobytes())
    digest.update(target.logits(probes[:, None]).double().cpu().numpy().tobytes())
    return digest.hexdigest()


def bigram_ids(target: Target, columns: int, first: int | None) -> np.ndarray:
    """(V, columns) int32: the target's best tokens after each token alone, or after ``first`` and
    the token.

    One forward a vocabulary id, in batches.
    """
    table = np.empty((target.vocab_size, columns), dtype=np.int32)
    batch = max(1, BATCH_LOGITS // target.vocab_size)
    for ids in torch.arange(target.vocab_size, device=target.device).split(batch):
        block = (
            ids[:, None]
            if first is None
            else torch.stack([torch.full_like(ids, first), ids], dim=1)
        )
        best = target.logits(block).topk(columns, dim=-1).indices
        table[int(ids[0]) : int(ids[-1]) + 1] = best.cpu().numpy()
    return table


@torch.inference_mode()
def unigram_ids(target: Target, columns: int, measure: Measure) -> np.ndarray:
    """(columns,) int32: tokens by their output embedding u, best first, in the metric C of the
    input embeddings.

    distance: smallest (u - mean)' C (u - mean), the paper's formula. inner_product: smallest mean'
    C u, its code.
    """
    width = torch.promote_types(target.dtype, torch.float32)
    metric = torch.zeros(target.hidden_size, target.hidden_size, dtype=width, device=target.device)
    for ids in torch.arange(target.vocab_size, device=target.device).split(CHUNK):
        embedded = target.embed(ids).to(width)
        metric += embedded.T @ embedded
    unit = torch.eye(target.hidden_size, dtype=target.dtype, device=target.device)
    # (V, D) without a bias
    output = (target.head(unit) - target.head(torch.zeros_like(unit[:1]))).T.to(target.device)
    mean = output.to(width).mean(0)
    scores = []
    for chunk in output.split(CHUNK):
        apart = chunk.to(width) - mean
        scores.append(
            ((apart @ metric) * apart).sum(-1)
            if measure == "distance"
            else chunk.to(width) @ metric @ mean
        )
    return (-torch.cat(scores)).topk(columns).indices.cpu().numpy().astype(np.int32)


def greedy_rows(best: np.ndarray, width: int) -> np.ndarray:
    """(V,) best successor of each token -> (V, width) int32: the token, its successor, that one's
    successor and so on.

    Example: best ``[1, 2, 0]``, width 3 -> ``[[0, 1, 2], [1, 2, 0], [2, 0, 1]]``.
    """
    rows = np.empty((len(best), width), dtype=np.int32)
    rows[:, 0] = np.arange(len(best))
    for place in range(1, width):
        rows[:, place] = best[rows[:, place - 1]]
    return rows


def cached_table(
    path: Path | None, shape: tuple[int, ...], vocab: int, build: Callable[[], np.ndarray]
) -> np.ndarray:
    """The int32 table in a file, ids below ``vocab``; ``build`` makes it if the file is missing or
    is not that table.

    Any other file at ``path`` is replaced, and a folder that cannot be written is not used; both
    are logged. path: None stores nothing.
    """
    if path is None:
        return build()
    try:
        with safe_open(path, framework="numpy") as file:
            kind = (file.metadata() or {}).get("format")
            if kind != FORMAT:
                raise ValueError(f"format {kind}; expected {FORMAT}")
            table = file.get_tensor("ids")
        if table.shape != shape or table.dtype != np.int32:
            raise ValueError(f"{table.dtype} of shape {table.shape}; expected int32 of {shape}")
        if table.min() < 0 or table.max() >= vocab:
            raise ValueError(f"ids from {table.min()} to {table.max()}; expected 0 to {vocab - 1}")
        return table
    except FileNotFoundError:
        pass  # the first time
    except (OSError, SafetensorError, ValueError) as error:
        log.warning("%s: not a whole table (%s); built again", path, error)
    table = build()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save({"ids": np.ascontiguousarray(table)}, {"format": FORMAT}))
    except (OSError, SafetensorError) as error:
        log.warning("%s: cannot be written (%s); it is built again in every run", path, error)
    return table


CONTEXT, BIGRAM, UNIGRAM = 0, 1, 2
COLUMNS = 32  # best tokens kept on disk, so that a sweep of k reads one file


@njit(widen=True)
def draft(
    nodes, tree, table, stored, length, counted, q, width, most, learns, by_tokens, top, chains,
    place, dedupe, rows, columns, merge, filler,
):  # fmt: skip
    """Count the windows that the context's new tokens complete, then spell the rows that follow it.

    nodes, tree: filled. stored, length: see ``GrowingText``. counted: place of the first window
    that is not counted. q, width, most: tokens of leaders and rows, and the most rows. top, chains,
    place: the model's best tokens, the row that begins with each, and which of ``top`` to read.
    dedupe: not those that the context has. rows, columns: of the draft. Returns (nodes, rows of the
    context, rows, counted); -1 nodes if the table must grow.
    """
    text = stored[:length]
    if learns:
        counted = count_windows(table, text, counted, q, q + width, most, by_tokens)
        if counted + q + width <= length:
            return -1, 0, 0, counted
    found = np.empty((most, width), np.int32)
    own = list_followers(table, text[max(0, length - q) :], found)
    size = own
    for rank in range(top.shape[1] if own < most else 0):
        chain = chains[top[place, rank]]
        known = False
        for row in range(own if dedupe else 0):
            known = known or (found[row] == chain).all()
        if not known and size < most:
            found[size] = chain
            size += 1
    size = min(size, rows)
    own = min(own, size)
    spell(tree, found[:size, :columns], size * columns, merge)
    count = copy_nodes(tree, nodes)
    for node in range(count):
        nodes[SOURCE, node] = CONTEXT if nodes[SOURCE, node] < own else filler
    return count, own, size, counted


class _Batch(ArrayDrafter):
    def __init__(self, method: NGrammys, prompt: Sequence[int]) -> None:
        super().__init__(method.k * method.width)
        self._method, self._tree = method, allocate_tree(method.k * method.width)
        self._table = GramTable(method.q, method.width, followers=method.k)
        self._counted = 0
        self.text.extend(prompt)
        if method.learns:
            self._counted = self._table.count(self.text.tokens, 0, method.ties == "lexicographic")
        self._from_context = 0  # rows of the last draft
        # by their rows from the context, and all their rows
        self._drafts: Counter[tuple[int, int]] = Counter()
        self._wins: Counter[tuple[str, int, int]] = Counter()  # by source, row and accepted tokens

    def fill(self, context: Sequence[int], budget: int) -> int:
        method, text = self._method, self.text
        text.follow(context)
        count, width, place = (
            method.k,
            method.width,
            0 if method.strategy == "unigram" else context[-1],
        )
        if budget < count * width:  # fewer and shorter rows, in the same proportion
            width = min(width, max(1, round(width * math.sqrt(budget / (count * width)))))
            count = min(count, budget // width)
        size = -1
        while size < 0:
            size, own, rows, self._counted = draft(
                self.nodes, self._tree, self._table.rows, text.stored, text.length, self._counted,
                *method.given, place, method.dedupe, count, width, method.verify == "trie",
                method.filler,
            )  # fmt: skip
            if size < 0:
                self._table.grow()
        self._from_context = own
        self._drafts[own, rows] += 1
        return size

    def observe(self, step: Step) -> None:
        if step.path:
            row = self._tree.item(step.path[-1], SOURCE)
            winner = (
                "context" if row < self._from_context else self._method.sources[self._method.filler]
            )
            self._wins[winner, row, len(step.path)] += 1

    def stats(self) -> dict[str, float]:
        figures: Counter[str] = Counter()
        for (own, rows), steps in self._drafts.items():
            figures["steps"] += steps
            figures["rows_context"] += own * steps
            figures[f"rows_{self._method.sources[self._method.filler]}"] += (rows - own) * steps
            figures[f"steps_with_context_rows_{own}"] += steps
        for (winner, row, accepted), steps in self._wins.items():
            figures[f"won_{winner}"] += steps
            figures[f"accepted_rank_{row}"] += steps
            figures[f"{winner}_accepted_{accepted}"] += steps
        return {name: float(count) for name, count in figures.items()}


@dataclass(eq=False)
class NGrammys(Parameters, Method):
    """N-Grammys; conf/method/n_grammys.yaml describes the parameters."""

    sources = ("context", "bigram", "unigram")

    k: int = count(10)
    w: int = count(10)
    q: int = count(1)
    strategy: Literal["mixed", "context", "bigram", "extended_bigram", "unigram"] = "mixed"
    verify: Literal["batch", "trie"] = "batch"
    ties: Literal["recent", "lexicographic"] = "recent"
    dedupe: bool = False
    bos: bool = False
    unigram: Measure = "distance"
    cache: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("k * w", self.k * self.w)
        self.width = 1 if self.strategy in ("bigram", "unigram") else self.w
        self.filler = UNIGRAM if self.strategy == "unigram" else BIGRAM
        self.learns = self.strategy in ("mixed", "context")
        self._first: int | None = None  # the BOS token's id
        self._top = np.empty((0, 0), np.int32)  # (V, k) best successors, or (1, k) for the unigram
        # (V, width) each token and what follows it greedily
        self._rows = np.empty((0, 0), np.int32)

    @property
    def given(self) -> tuple[object, ...]:
        """What ``draft`` takes of the method."""
        lengths = (self.q, self.width, self.k)
        return (*lengths, self.learns, self.ties == "lexicographic", self._top, self._rows)

    @property
    def needs(self) -> Needs:
        """A batch of rows, or nothing for the trie."""
        return Needs(rows=self.verify == "batch")

    def check(self, model: ModelCard) -> None:
        if self.bos and model.tokenizer.bos_token_id is None:
            raise InputError(
                f"bos=true: the tokenizer of model={model.name} has no BOS token; expected"
                " bos=false"
            )
        self._first = model.tokenizer.bos_token_id if self.bos else None

    def bind(self, target: Target) -> None:
        """Read the model's n-grams from the cache, or compute them; the context's need no
        weights.
        """
        require_nodes(f"k={self.k}, w={self.w}", self.k * self.width, target.max_nodes)
        repeated = [0] * (self.q + self.width)
        # compile, so that no request does
        self.begin(repeated, Prefill(0), 0).propose(repeated, target.max_nodes)
        if self.strategy == "context":
            return
        if target.model is None:
            raise InputError(
                f"strategy={self.strategy}: needs the target's weights, and a replay has recorded"
                " tokens only; expected strategy=context, or a model"
            )
        vocab = target.vocab_size
        columns = min(vocab, max(self.k, COLUMNS))
        one = self.strategy == "unigram"
        kind = f"unigram_{self.unigram}" if one else "bigram"
        path = None
        if self.cache:
            suffix = f"_bos{self._first}" if self.bos and not one else ""
            name = f"{fingerprint(target)[:24]}_{kind}_{columns}{suffix}.safetensors"
            path = Path(self.cache).expanduser() / name
        if one:
            top = cached_table(
                path, (1, columns), vocab, lambda: unigram_ids(target, columns, self.unigram)[None]
            )
        else:
            top = cached_table(
                path, (vocab, columns), vocab, lambda: bigram_ids(target, columns, self._first)
            )
        best = np.zeros(vocab, np.int32) if one else top[:, 0]
        self._top = np.ascontiguousarray(top[:, : self.k])
        self._rows = greedy_rows(best, self.width)

    def begin(self, prompt: Sequence[int], prefill: Prefill, seed: int) -> Drafter:
        return _Batch(self, prompt)

    def state_bytes(self) -> int:
        return self._top.nbytes + self._rows.nbytes
