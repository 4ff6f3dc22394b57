"""The eager engine: any Hugging Face causal LM, tree attention by a 4-D mask and explicit positions.

Invariant between forwards: the cache holds every token of the context but the last one, the root.
A forward feeds the root and N draft nodes; the accepted nodes' slots are then moved together and the rest forgotten.
A method that needs rows has its draft fed as a batch of rows instead, and the winning row's slots are appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from specbench.target.cache import SlotCache
from specbench.target.engine import Engine, Laps, Verifier, continues
from specbench.target.family import windows_of
from specbench.target.rows import RowBatch
from specbench.target.stop import cut
from specbench.target.tree import causal_mask, depths_of, tree_mask
from specbench.types import EMPTY, ROOT, CaseError, Draft, Needs, Prefill, Step, TopK


class EagerEngine(Engine):
    """Drives one loaded model. Not re-entrant: one request at a time."""

    def __init__(self, model: Any, context: int, eos: frozenset[int], max_nodes: int) -> None:
        """model: a causal LM in eval mode. context: [tokens] its limit. max_nodes: the largest draft."""
        self.model = model
        self.context = context
        self.max_nodes = max_nodes
        self.eos = eos
        self.fed = 0
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = model.dtype
        self._windows = windows_of(model.config)
        self.cache = SlotCache.for_model(model)
        self._begin_request()

    def _begin_request(self) -> None:
        self._root = -1
        self._draft = EMPTY
        self._fed = torch.empty(0, dtype=torch.long)
        self._parents: Sequence[int] = ()
        self._depths: list[int] = []
        self._batch: RowBatch | None = None
        self._output: Any = None

    @torch.inference_mode()
    def reserve(self, tokens: int) -> None:
        """Empty the cache and make room for ``tokens`` and the largest draft; allocates only if it has to grow."""
        self.cache.reserve(min(tokens, self.context) + self.max_nodes + 1)

    @torch.inference_mode()
    def start(self, prompt: Sequence[int], limit: int, walk: Verifier, needs: Needs, laps: Laps) -> Prefill:
        """Read ``prompt`` and pick the first token; see ``Engine.start``."""
        self._begin_request()
        self._walk, self._needs, self._laps = walk, needs, laps
        self.reserve(len(prompt) + limit)
        if not needs.rows:
            self.cache.drop_copies()
        every_row = needs.prompt_topk > 0
        ids = torch.tensor(prompt, device=self.device)
        output = self._run(ids[None], None, (), every_row, bool(needs.hidden))
        logits = output.logits[0]
        picks, _ = self._pick(logits[-1:], [0], None)
        self._root = picks[0]
        walk.advance(1)
        top = _top(logits if every_row else logits[-1:], max(needs.prompt_topk, needs.node_topk))
        read = slice(None) if needs.prompt_hidden else slice(-1, None)
        hidden = {layer: output.hidden_states[layer][0, read] for layer in needs.hidden}
        return Prefill(self._root, hidden, top)

    @torch.inference_mode()
    def forward(self, draft: Draft) -> None:
        """Feed the root and the draft's nodes; the result waits for ``settle``."""
        self._draft = draft
        nodes = len(draft.tokens)
        if nodes != len(draft.parents):
            raise CaseError(f"draft of {nodes} tokens has {len(draft.parents)} parents; expected as many")
        if nodes > self.max_nodes:
            raise CaseError(f"draft of {nodes} nodes; expected at most {self.max_nodes} (engine.max_nodes)")
        self._parents = draft.parents.tolist() if isinstance(draft.parents, Tensor) else draft.parents
        self._depths = depths_of(self._parents)
        if isinstance(draft.tokens, Tensor):  # drafted on the device: they come back with the picks, in one read
            self._fed = torch.cat([torch.tensor([self._root], device=self.device), draft.tokens.to(self.device)])
        else:
            self._fed = torch.tensor([self._root, *draft.tokens], device=self.device)
        wanted = bool(self._needs.hidden)
        self._batch = RowBatch.of(self._parents, self._depths) if self._needs.rows else None
        if self._batch is None:
            block = self._fed[None]
            self._output = self._run(block, self._parents, self._depths, True, wanted)
        else:
            block, width = self._batch.lay_out(self._fed), self._batch.width
            self._output = self._run(block, range(ROOT, width - 1), range(1, width + 1), True, wanted)
        self.fed = block.numel()
        self._laps.lap("forward")

    @torch.inference_mode()
    def settle(self, left: int, late: Draft | None = None) -> Step:
        """Accept, cut and commit; see ``Engine.settle``."""
        logits = self._computed(self._output.logits)
        tokens, path, bonus, kept = self._judge(logits, late)
        emitted, done = cut([*(int(tokens[node]) for node in path), bonus], self.eos, left)
        kept = kept and len(emitted) == len(path) + 1
        path = path[: len(emitted) - 1]
        self._commit(path)
        self._laps.lap("verify")
        step = Step(
            root=self._root,
            emitted=tuple(emitted),
            path=tuple(path),
            done=done,
            late=int(kept),
            fed=self._fed if self._needs.node_topk or self._needs.hidden else None,
            topk=_top(logits, self._needs.node_topk),
            hidden={layer: self._computed(self._output.hidden_states[layer]) for layer in self._needs.hidden},
        )
        self._root = emitted[-1]
        self._walk.advance(len(emitted))
        self._output = None
        return step

    def _judge(self, logits: Tensor, late: Draft | None) -> tuple[Sequence[int], list[int], int, bool]:
        """(the draft's tokens on the host, accepted path, token behind it, whether that is the late chain's)."""
        draft, walk = self._draft, self._walk
        drawn = draft.probs is not None or (late is not None and late.probs is not None)
        if walk.law is not None and (drawn or walk.lossy):
            _require_finite(logits.max(-1).values.tolist(), self.dtype)
            fixed = draft.tokens.tolist() if isinstance(draft.tokens, Tensor) else draft.tokens
            verdict = walk.judge(logits, draft, fixed, late)
            return fixed, verdict.path, verdict.token, verdict.late
        picks, fed = self._pick(logits, [0, *self._depths], self._fed if isinstance(draft.tokens, Tensor) else None)
        tokens: Sequence[int] = fed[1:] if fed is not None else cast(Sequence[int], draft.tokens)
        path = walk.follow(tokens, self._parents, draft.passenger, picks)
        bonus = picks[path[-1] + 1] if path else picks[0]
        return tokens, path, bonus, late is not None and continues(late, len(path) == len(tokens), bonus)

    def _computed(self, tensor: Tensor) -> Tensor:
        """What the last forward gave, as (N+1, X): row 0 the root, row i + 1 node i of the draft."""
        return tensor[0] if self._batch is None else self._batch.collect(tensor)

    def _commit(self, path: Sequence[int]) -> None:
        """Keep the keys and values of the root and the accepted path, forget the other nodes'."""
        if self._batch is None:
            past = self.cache.length - len(self._draft) - 1
            self.cache.keep(past, [past, *(past + 1 + node for node in path)])
        else:
            self.cache.keep_row(self._batch.row_of(path), len(path) + 1)

    @torch.inference_mode()
    def gaps(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        """Judge ``ids`` in one pass over prompt and ids; see ``Engine.gaps``."""
        self.cache.reserve(len(prompt) + len(ids))
        tokens = torch.tensor([*prompt, *ids[:-1]], device=self.device)
        kept = torch.arange(len(prompt) - 1, len(tokens), device=self.device)
        logits = self._run(tokens[None], None, (), kept, False).logits[0].float()
        chosen = logits.gather(-1, torch.tensor(ids, device=logits.device)[:, None])[:, 0]
        gaps = (logits.max(-1).values - chosen).tolist()
        if not all(abs(gap) < float("inf") for gap in gaps):
            raise CaseError(
                "the target's logits are NaN or infinite where the answer was judged; expected finite numbers"
            )
        return gaps

    def _run(
        self, tokens: Tensor, parents: Sequence[int] | None, depths: Sequence[int], rows: Any, want_hidden: bool
    ) -> Any:
        """One call of the model over (k, T) tokens, the same tree of them in each of the k rows.

        parents: None = a prompt, from an empty cache. depths: of ``parents``. rows: True, False (last) or index.
        """
        length, past = tokens.shape[1], self.cache.length
        at = range(length) if parents is None else [past, *(past + depth for depth in depths)]
        last = self.context - 1  # nodes beyond the context can never be accepted, but their position must exist
        positions = torch.tensor([[min(place, last) for place in at]], device=self.device)
        mask = self._mask(length, parents, depths, past)
        if parents is not None:
            self._laps.lap("prepare")
        return self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=rows if isinstance(rows, Tensor) else (0 if rows else 1),
            output_hidden_states=want_hidden,
        )

    def _mask(self, length: int, parents: Sequence[int] | None, depths: Sequence[int], past: int) -> Any:
        """One mask, or one a kind of layer; None where causal attention over everything is meant: the fastest path."""
        plain = parents is None or not len(parents)
        if plain and list(self._windows.values()) == [None]:
            return None
        masks = {kind: self._build(length, parents, depths, past, size) for kind, size in self._windows.items()}
        return next(iter(masks.values())) if len(masks) == 1 else masks

    def _build(
        self, length: int, parents: Sequence[int] | None, depths: Sequence[int], past: int, window: int | None
    ) -> Tensor:
        if parents is None:
            mask = causal_mask(length, window, self.dtype)
        else:
            mask = tree_mask(parents, depths, past, window, self.dtype)
        return mask.to(self.device, non_blocking=True)

    def _pick(self, logits: Tensor, depths: list[int], fed: Tensor | None) -> tuple[list[int], list[int] | None]:
        """The rows' tokens, and ``fed`` on the host, in one read-back: the step's only synchronisation.

        Raises CaseError when a row's logits are not finite.
        """
        best = logits.max(-1).values.double()
        rows = [best, self._walk.pick(logits, depths).double(), *([fed.double()] if fed is not None else [])]
        peaks, picks, *rest = torch.stack(rows).tolist()
        _require_finite(peaks, self.dtype)
        return [int(token) for token in picks], [int(token) for token in rest[0]] if rest else None


def _require_finite(peaks: Sequence[float], dtype: torch.dtype) -> None:
    if not all(abs(peak) < float("inf") for peak in peaks):
        raise CaseError(
            "the target's logits are NaN or infinite; expected finite numbers"
            f" (model.dtype={str(dtype).removeprefix('torch.')}: try bfloat16 or float32)"
        )


def _top(logits: Tensor, k: int) -> TopK | None:
    if not k:
        return None
    best = logits.topk(k, dim=-1)
    return TopK(best.indices, best.values)
