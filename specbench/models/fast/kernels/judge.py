"""The check of the Triton kernels on drawn cases: each result next to the same computation in
float64.

A random value in every column would hide one key among thousands in bfloat16. Here the value of a
slot is zero in all columns but one, slot modulo size, and positive there, so a column is the
weighted mean of few keys. One key too many or too few, or a split with a wrong weight, changes it
by percents; rounding by at most one epsilon of the dtype. Slots after the fed rows are NaN. So it
is with products: an output is the sum of few positive inputs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.runtime.cache import get_cache_manager

from specbench.models.fast.kernels import products, small_ops, tree_attention
from specbench.models.fast.layout import lay_out
from specbench.models.fast.masks import TreeMask, pack_bits
from specbench.models.fast.operations import Linear, Norm, Normed, SmallOps, Unscaled
from specbench.types import EMPTY, ROOT

LIMITS = {torch.float32: 64, torch.float16: 2, torch.bfloat16: 2}  # [epsilons of the dtype]
HEAVY = 8  # the value of the last slot of the context and of each fed row; others are 1 to 2
TERMS = 16  # inputs of an output of a product: one of them is 3 % or more
VERDICT = "verdict.json"
DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """Tree attention of requests with ``width`` rows each."""

    dtype: torch.dtype
    key_heads: int
    groups: int  # query heads per key head
    size: int  # of a head
    width: int
    pasts: tuple[int, ...]  # [tokens] of each request's context
    window: int | None = None
    splits: int | None = None  # None: those that ``attend`` chooses
    slots: int = 0  # of each request's memory, at least
    # nodes after the context, of which the last ones are fed; None: all are
    columns: int | None = None

    def measure(self, device: torch.device) -> float:
        """Return the largest relative error of a number, in units of the limit."""
        random = torch.Generator(device).manual_seed(1)
        options: Any = {"device": device, "generator": random}
        nodes = self.columns or self.width
        batches, heads, most = (
            len(self.pasts),
            self.key_heads * self.groups,
            max(self.pasts) + nodes,
        )
        layouts = [_draw_tree(nodes, seed) for seed in range(batches)]
        fed = torch.randn(
            batches * self.width, heads + 2 * self.key_heads, self.size, **options
        ).to(self.dtype)
        both = torch.full(
            (2, batches, self.key_heads, max(self.slots, most + 1), self.size), torch.nan,
            dtype=self.dtype, device=device,
        )  # fmt: skip
        code = torch.arange(most, device=device)[:, None] % self.size == torch.arange(
            self.size, device=device
        )
        for batch, past in enumerate(self.pasts):
            end = past + nodes
            both[0, batch, :, :end] = torch.randn(self.key_heads, end, self.size, **options).to(
                self.dtype
            )
            values = 1 + torch.rand(self.key_heads, end, 1, **options)
            values[:, max(past - 1, 0) :] = HEAVY
            both[1, batch, :, :end] = (values * code[:end]).to(self.dtype)
        query, (keys, values) = fed[:, :heads], both
        depths = np.stack([depths for _, depths in layouts])
        seen = np.stack([seen for seen, _ in layouts])
        if self.window is not None:
            seen &= depths[:, :, None] - depths[:, None, :] < self.window
        seen, depths = seen[:, -self.width :], depths[:, -self.width :].copy()
        bits = torch.from_numpy(pack_bits(seen.reshape(-1, nodes))).to(device)
        mask = TreeMask(
            tree_attention.attend, torch.tensor(self.pasts, device=device),
            torch.from_numpy(depths).flatten().to(device), bits, self.window, nodes,
        )  # fmt: skip
        if self.splits is None:
            got = tree_attention.attend(query, keys, values, mask)
        else:
            tile = tree_attention.choose_tile(self.width * self.groups, self.dtype == torch.float32)
            with torch.cuda.device_of(query):
                got = tree_attention.launch(query, keys, values, mask, tile, self.splits)
        each = zip(
            query.split(self.width), keys, values, self.pasts, torch.from_numpy(seen).to(device),
            mask.depths.split(self.width), strict=True,
        )  # fmt: skip
        want = torch.cat([self._compute(*request) for request in each])
        return _compare(got, want, want)

    def _compute(
        self, rows: Tensor, keys: Tensor, values: Tensor, past: int, seen: Tensor, depths: Tensor
    ) -> Tensor:
        """(width, H, size) float64 of one request. rows: (width, H, size). keys, values: (K, slots,
        size).
        """
        keys, values = (each[:, : past + seen.shape[1]].double() for each in (keys, values))
        query = rows.double().unflatten(1, (self.key_heads, self.groups)).permute(1, 2, 0, 3)
        scores = query @ keys[:, None].mT * self.size**-0.5
        near = torch.ones(self.width, past, dtype=torch.bool, device=rows.device)
        if self.window is not None:
            near = past + depths[:, None] - torch.arange(past, device=rows.device) < self.window
        scores = scores.masked_fill(~torch.cat([near, seen], 1), float("-inf"))
        return (scores.softmax(-1) @ values[:, None]).permute(2, 0, 1, 3).flatten(1, 2)


@dataclass(frozen=True, slots=True)
class RowsCase:
    """The small operations of a layer on ``count`` rows."""

    dtype: torch.dtype
    key_heads: int
    groups: int
    size: int
    count: int
    hidden: int
    inner: int  # numbers of a row that are gated

    def make_ops(self, cos: Tensor, sin: Tensor) -> tuple[SmallOps, SmallOps, SmallOps]:
        """Return our operations with these tables, torch's in float64, and torch's on the sizes of
        what is summed.
        """
        heads, wide = self.key_heads * self.groups, (cos.double(), sin.double())
        exact = SmallOps(wide[0], wide[1], heads, self.key_heads)
        bound = SmallOps(wide[0].abs(), wide[1].abs(), heads, self.key_heads)
        return small_ops.FusedOps(cos, sin, heads, self.key_heads), exact, bound

    def measure(self, device: torch.device) -> float:
        """Return the largest relative error of a number, in units of the limit."""
        random = torch.Generator(device).manual_seed(1)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, device=device, generator=random).to(self.dtype)

        heads, places = self.key_heads * self.groups, self.count + 3
        cos, sin = draw(places, self.size), draw(places, self.size)
        fused, exact, bound = self.make_ops(cos, sin)
        rows, added, weight = (
            draw(self.count, self.hidden),
            draw(self.count, self.hidden),
            draw(self.hidden),
        )
        got = [*fused.add_norm(rows, added, Norm(weight, 1e-5))]
        want = [*exact.add_norm(rows.double(), added.double(), Norm(weight.double(), 1e-5))]
        gate_up = draw(self.count, 2 * self.inner)
        got.append(fused.gate(gate_up))
        want.append(exact.gate(gate_up.double()))
        sizes = [each.abs() for each in want]
        turned = draw(self.count, heads + 2 * self.key_heads, self.size)
        positions, at = (
            torch.randperm(places, device=device, generator=random)[: self.count] for _ in range(2)
        )
        wide = turned.double()
        for ops, given, found in (
            (fused, turned, got),
            (exact, wide, want),
            (bound, wide.abs(), sizes),
        ):
            slots = torch.ones(
                2 * self.key_heads, places, self.size, dtype=given.dtype, device=device
            )
            found.extend((ops.make_rotation(positions)(given, slots, at), slots))
        return max(map(_compare, got, want, sizes))


@dataclass(frozen=True, slots=True)
class ProductsCase(RowsCase):
    """The products of a layer and of the head on ``count`` rows, with what is around them; each is
    computed twice.

    Of a wide head only as many outputs are computed as give the same kind of blocks, and the same
    last one.
    """

    vocab: int  # outputs of the head
    biased: bool = False  # of q, k and v, as Qwen2's

    def measure(self, device: torch.device) -> float:
        """Return the largest relative error of a number, in units of the limit; infinite if the
        second differs.
        """
        random = torch.Generator(device).manual_seed(1)

        def draw(*shape: int) -> Tensor:
            return (1 + torch.rand(*shape, device=device, generator=random)).to(self.dtype)

        heads, places = self.key_heads * self.groups, self.count + 3
        cos, sin = draw(places, self.size) - 1.5, draw(places, self.size) - 1.5
        fused, exact, bound = self.make_ops(cos, sin)
        positions, at = (
            torch.randperm(places, device=device, generator=random)[: self.count] for _ in range(2)
        )
        rows, norm = draw(self.count, self.hidden), Norm(draw(self.hidden), 1e-5)
        normed: list[Normed] = []
        errors = []

        def compare(
            outputs: int,
            fed: Normed,
            run: Callable[[SmallOps, Linear, Any], Tensor],
            bias: Tensor | None = None,
        ) -> None:
            plain = (
                fed.norm(fed.rows.double()).double() if isinstance(fed, Unscaled) else fed.double()
            )
            inputs = plain.shape[1]
            line, column = (
                torch.arange(count, device=device) % max(1, inputs // TERMS)
                for count in (outputs, inputs)
            )
            layer = SimpleNamespace(
                weight=draw(outputs, inputs).mul_(line[:, None] == column), bias=bias
            )
            short = products.ShortLinear([layer], False)
            first, again = run(fused, short, fed), run(fused, short, fed)
            layer.weight, layer.bias = (
                layer.weight.double(),
                None if bias is None else bias.double(),
            )
            want, sizes = (run(ops, Linear([layer], False), plain) for ops in (exact, bound))
            errors.append(
                _compare(first, want, 2 * sizes) if torch.equal(first, again) else float("inf")
            )

        def add(ops: SmallOps, taken: Linear, fed: Tensor) -> Tensor:
            summed, after = ops.add_product(rows.to(fed.dtype), taken, fed, norm)
            normed.append(after)
            return summed

        def rotate(ops: SmallOps, taken: Linear, fed: Normed) -> Tensor:
            slots = torch.ones(
                2 * self.key_heads, places, self.size, dtype=taken.weight.dtype, device=device
            )
            queries = ops.project(
                taken, None, fed, ops.make_rotation(positions), positions, slots, at
            )
            return torch.cat([queries.flatten(), slots.flatten()])

        compare(self.hidden, draw(self.count, heads * self.size), add)
        compare(self.hidden, draw(self.count, self.inner), add)
        compare(2 * self.inner, normed[0], lambda ops, taken, fed: ops.gate_product(taken, fed))
        compare(2 * self.inner, normed[0], lambda _, taken, fed: taken(fed))
        outputs, width = (heads + 2 * self.key_heads) * self.size, products.BROAD.width
        compare(outputs, normed[0], rotate, draw(outputs) if self.biased else None)
        outputs = width * (1 + tree_attention.count_processors(device)) + self.vocab % width
        compare(
            min(self.vocab, outputs),
            draw(self.count, self.hidden),
            lambda _, taken, fed: taken(fed),
        )
        return float(np.max(errors))  # NaN if one is


Case = AttentionCase | RowsCase | ProductsCase


def find_fault(cases: Iterable[Case], device: torch.device) -> str | None:
    """Return the first case whose error exceeds its limit, and that error; None if every error is
    within its limit.
    """
    for case in cases:
        if not (error := case.measure(device)) <= 1:
            return f"{case}: the error is {error:.3g} times the limit"
    return None


def list_wide(dtypes: Iterable[torch.dtype] = tuple(LIMITS)) -> Iterator[Case]:
    """List cases with every pair of values of GQA groups, splits, rows and head size, each with and
    without a window.

    Each has a request at every border of a block and one to each side, up to about
    2048 [tokens]. Nine cases are an orthogonal array of the four axes (Taguchi's L9), so each
    compilation serves six pairs. bfloat16 is wrong in Triton's interpreter (3.6 to 3.9).
    """
    borders = (0, 32, 64, 96, 128, 256, 512, 1024, 2048)
    pasts = tuple(sorted({max(0, border + side) for border in borders for side in (-1, 0, 1)}))
    sizes, counts, dtypes = (128, 64, 80), (1, 2, tree_attention.MOST_SPLITS), tuple(dtypes)
    for dtype, (window, widths) in product(dtypes, ((None, (1, 8, 65)), (40, (2, 20, 33)))):
        for place, groups in enumerate((1, 4, 8)):
            for other, splits in enumerate(counts):
                width, size = widths[(place + other) % 3], sizes[(place + 2 * other) % 3]
                yield AttentionCase(dtype, 2, groups, size, width, pasts, window, splits)
    for dtype, count, (size, hidden, inner) in product(
        dtypes, (1, 65), ((128, 4096, 11008), (80, 2560, 6912))
    ):
        yield RowsCase(dtype, 2, 4, size, count, hidden, inner)
    # no splits, and 4
    shapes = ((128, 4096, 11008, 32000), (80, 2560, 6912, 50257), (64, 896, 4864, 151936))
    for dtype, count, (size, hidden, inner, vocab) in product(dtypes, (1, 16), shapes):
        if dtype in products.DTYPES:
            yield ProductsCase(dtype, 2, 4, size, count, hidden, inner, vocab, size == 64)


def list_few(
    dtype: torch.dtype, key_heads: int, groups: int, size: int, windows: Iterable[int | None],
    widths: Sequence[int], hidden: int, inner: int, slots: int, vocab: int, biased: bool = False,
    columns: int | None = None,
) -> Iterator[Case]:  # fmt: skip
    """List cases of one model's shapes, which its engine is about to compile. slots: of its cache.
    The rest: as there.

    columns: of one more case for each width.
    """
    for window, width in product(dict.fromkeys(windows), widths):
        pasts = (0, 31, 32, 65, min(2048, slots - width - 1))
        for past, nodes in dict.fromkeys([*((past, None) for past in pasts), (65, columns)]):
            yield AttentionCase(
                dtype, key_heads, groups, size, width, (past,), window, None, slots, nodes
            )
    for width in widths:
        yield RowsCase(dtype, key_heads, groups, size, width, hidden, inner)
    for count in (1, 15, 16, 17) if dtype in products.DTYPES else ():
        yield ProductsCase(dtype, key_heads, groups, size, count, hidden, inner, vocab, biased)


def find_fault_once(cases: Iterable[Case], device: torch.device) -> str | None:
    """``find_fault`` on a GPU, once for each kind of GPU, driver, torch, Triton, code of the fast
    engine, and cases.

    The verdict is in Triton's cache, next to the compiled kernels (``TRITON_CACHE_DIR``). A file
    that is damaged or of other cases is not believed; if it cannot be written, the next run checks
    again.
    """
    cases, files = [*cases], [*sorted(Path(__file__).parents[1].rglob("*.py")), DRIVER]
    versions = torch.__version__, torch.version.cuda, triton.__version__
    # the driver's is not in every container
    texts = (file.read_text("utf-8") for file in files if file.exists())
    parts = [torch.cuda.get_device_name(device), *versions, *texts, *cases]
    key = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
    kept = get_cache_manager(key)
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        named, fault = json.loads(Path(kept.get_file(VERDICT) or "").read_text("utf-8"))
        if named == key and (fault is None or (isinstance(fault, str) and fault)):
            return fault
    fault = find_fault(cases, device)
    with contextlib.suppress(OSError):
        kept.put(json.dumps([key, fault]), VERDICT, binary=False)
    return fault


def _draw_tree(width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(width, width) bool of what each row sees, and (width,) depths; half of the nodes continue a
    chain.
    """
    random = np.random.default_rng(seed)
    parents = [
        node - 1 if random.random() < 0.5 else int(random.integers(ROOT, node))
        for node in range(width - 1)
    ]
    layout = lay_out(parents, EMPTY, None)
    return layout.seen(), layout.depths


def _compare(got: Tensor, want: Tensor, sizes: Tensor) -> float:
    """Return the largest error over the size, in units of the limit; NaN if a number is. sizes: of
    what was summed.
    """
    if got.shape != want.shape:
        return float("inf")
    kind = torch.finfo(got.dtype)
    return float(((got.double() - want).abs() / (sizes + kind.tiny)).max()) / (
        LIMITS[got.dtype] * kind.eps
    )
