"""The compact forward of drafts on a CPU, as one call of compiled code.

A decode step of a small model is some hundred operations of torch, each of which costs more than
its computing, and torch's product of one row with a matrix reads memory at a third of its speed.
Here a step is one call, and a product reads the weights where they are, about as fast as memory
gives them, for one row and for eight.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from specbench.models.batch import PackedRows
from specbench.models.fast.cache import StaticKV
from specbench.models.fast.compact import CompactModel
from specbench.models.fast.frame import TreeFrame
from specbench.models.fast.operations import SmallOps, can_pack
from specbench.models.transfer import stored
from specbench.models.tree import TreeRows
from specbench.types import ROOT, InputError

DTYPES = (torch.float32, torch.bfloat16)
# Numbers of which heads and rows of weights are multiples, so that no vector is filled in part.
HEAD, ROW = 16, 32
NO_PICKS = NO_EOS = np.empty(0, dtype=np.int64)
UNLIMITED = 1 << 40  # [tokens] that are left to emit
# [tokens] of a prompt that is read faster than by torch, which multiplies and attends to blocks of
# rows
SHORT = 128
# numba's threads take work from one caller; drafts may be concurrent
ONE_AT_A_TIME = threading.Lock()


def build_forward(
    model: Any,
    positions: int,
    limit: int,
    *,
    pack: bool,
    compiled: bool,
    small: type[SmallOps] = SmallOps,
) -> tuple[CompactModel, CompiledForward | None, str | None]:
    """Make a library's model compact; returns it, its compiled forward if wanted and possible, or
    else the reason.

    positions, limit, small: see ``CompactModel``. pack: pack the weights where torch computes.
    """
    compact = CompactModel(model, positions, limit, False, small)
    found = reason = None
    if compiled and compact.device.type == "cpu" and not (reason := _explain_unfit(compact)):
        kernels, reason = load_kernels()
        found = CompiledForward(compact, kernels) if kernels else None
    if found is None and pack and can_pack(compact.dtype, compact.device):
        compact = CompactModel(model, positions, limit, True, small)
    return compact, found, reason


def load_kernels() -> tuple[Any, str | None]:
    """Import the compiled code, which takes a while; returns the module, or None and the reason."""
    try:
        from specbench.models.fast.host import kernels
    except InputError as error:
        return None, str(error)
    if isinstance(kernels.forward, FunctionType):
        return None, "numba compiles nothing; expected no NUMBA_DISABLE_JIT"
    return kernels, None


def call_compiled(function: Callable[..., None], kernels: Any, *given: Any) -> None:
    """Call a function of ``kernels`` with the threads that torch has, which is its last
    argument.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        function(*given, None)
        return
    with ONE_AT_A_TIME:
        kernels.wake(threads)
        # numba's first start sets OpenMP's count, which is torch's too
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        function(*given, threads)


class Product:
    """``x -> x W^T + b`` of (rows, in) inputs: few rows on a CPU by compiled code, all others by
    torch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight: (out, in). bias: (out,)."""
        self._weight, self._bias = weight.detach(), None if bias is None else bias.detach()
        fits = not weight.shape[1] % ROW and weight.is_contiguous()
        self._kernels = _kernels_for(weight) if fits else None
        self._stored = stored(self._weight) if self._kernels else np.empty(0)

    def __call__(self, rows: Tensor) -> Tensor:
        """(rows, in) -> (rows, out)."""
        if self._kernels is None or len(rows) > SHORT:
            return functional.linear(rows, self._weight, self._bias)
        out = np.empty((len(rows), len(self._weight)), np.float32)
        address = self._stored.ctypes.data
        call_compiled(
            self._kernels.multiply_rows, self._kernels, in_single(rows), address, self._stored, out
        )
        found = torch.from_numpy(out).to(rows.dtype)
        return found if self._bias is None else found.add_(self._bias)


class Norm:
    """``x -> x / rms(x) * w`` of (rows, in) inputs: few rows on a CPU by compiled code, all others
    by torch.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        """weight: (in,)."""
        self.weight, self._epsilon = weight, epsilon
        self._kernels = _kernels_for(weight)
        self._given = (in_single(weight), epsilon, stored(weight)) if self._kernels else ()

    def __call__(self, rows: Tensor) -> Tensor:
        """(rows, in) -> (rows, in)."""
        if self._kernels is None or len(rows) > SHORT:
            return functional.rms_norm(rows, self.weight.shape, self.weight, self._epsilon)
        out = np.empty(rows.shape, np.float32)
        self._kernels.normalise_rows(in_single(rows), *self._given, out)
        return torch.from_numpy(out).to(rows.dtype)


def _kernels_for(weight: Tensor) -> Any:
    """The compiled code, if it reads weights of this device and type."""
    return load_kernels()[0] if weight.device.type == "cpu" and weight.dtype in DTYPES else None


def in_single(rows: Tensor) -> np.ndarray:
    """Rows on a CPU in single precision: their own memory if it is that."""
    array: np.ndarray = rows.float().contiguous().numpy()
    return array


def _explain_unfit(model: CompactModel) -> str | None:
    if model.dtype not in DTYPES:
        return (
            "it is for float32 and bfloat16, the model is"
            f" {str(model.dtype).removeprefix('torch.')}"
        )
    if model.size % HEAD:
        return f"a head has {model.size} numbers, not a multiple of {HEAD}"
    sizes = [each.weight.shape[1] for layer in model.layers for each in _products(layer)]
    if odd := [size for size in sizes if size % ROW]:
        return f"a row of weights has {odd[0]} numbers, not a multiple of {ROW}"
    if len(model.windows) > 2:
        return f"its layers are of {len(model.windows)} kinds, not of one or two"
    if any(window is not None and window < 1 for window in model.windows.values()):
        return "a sliding window has no position"
    if any(each.bias is not None for layer in model.layers for each in _products(layer)[1:]):
        return "maps other than those of q, k and v have a bias"
    if model.head.bias is not None:
        return "its head has a bias"
    products = [model.head, *(each for layer in model.layers for each in _products(layer))]
    if not all(each.weight.is_contiguous() for each in products):
        return "a map's weights do not lie row behind row"
    return None


def _products(layer: Any) -> list[Any]:
    return [layer.qkv, layer.out, layer.gate_up, layer.down]


@dataclass(slots=True)
class PackedLayout:
    """The n rows of B requests; see ``kernels.lay_out``."""

    ids: np.ndarray  # (n,)
    parents: np.ndarray
    spans: np.ndarray
    places: np.ndarray
    reach: np.ndarray
    biases: np.ndarray
    depth: int = 0  # the largest
    found: np.ndarray = field(init=False)  # memory for what ``kernels.accept_all`` finds

    def __post_init__(self) -> None:
        self.found = np.empty((4 + 2 * self.biases.shape[2], len(self.spans)), dtype=np.int64)


class CompiledForward:
    """The forward over frames of one compact model, whose weights it reads in place.

    A row's result has the same bits in a frame of any width: see ``kernels``. Tensors are valid
    until the next call.
    """

    def __init__(self, model: CompactModel, kernels: Any) -> None:
        """kernels: the module, which is imported only if it is needed."""
        self._kernels = kernels
        self._model, self._single = model, model.dtype == torch.float32
        layers, kinds = model.layers, list(model.windows)
        norms = [layers[0].before]
        for layer, after in zip(layers, [*layers[1:], None], strict=True):
            norms += [layer.after, model.norm if after is None else after.before]
        addresses = [[each.weight.data_ptr() for each in _products(layer)] for layer in layers]
        windows = [model.windows[kind] for kind in kinds] * 2
        self._constants = (
            np.array([-1 if window is None else window for window in windows[:2]]),
            np.array([kinds.index(layer.kind) for layer in layers]),
            model.query_heads,
            _products(layers[0])[-1].weight.shape[1],
            stored(model.embedding),
            np.array([*addresses, [model.head.weight.data_ptr(), 0, 0, 0]]),
            stack([norm.weight for norm in norms]),
            stack([self._head_norms(layer) for layer in layers]),
            stack([self._head_bias(layer) for layer in layers]),
            np.array([norms[0].epsilon, (layers[0].heads or norms)[0].epsilon]),
            stack(list(model.small.cos)),
            stack(list(model.small.sin)),
        )
        self._kind = stored(model.embedding).dtype
        self._taps: dict[tuple[int, ...], np.ndarray] = {}
        # of ``pack``, with these numbers of rows, of requests and of nodes
        self._layout: PackedLayout | None = None
        self._sizes = (0, 0, 0)
        self._logits = np.empty((0, len(model.head.weight)), np.float32)
        # Views, by their sizes. To make them anew at every step takes long: weights have filled the
        # caches meanwhile.
        self._results: dict[int, tuple[np.ndarray, Tensor]] = {}
        self._last = self._logits, torch.from_numpy(self._logits)  # of the last forward
        self._untapped = np.empty((0, 0, model.embedding.shape[1]), np.float32)

    def _head_norms(self, layer: Any) -> Tensor:
        """(H + K, size), or no rows."""
        counts = (self._model.query_heads, self._model.key_heads) if layer.heads else (0, 0)
        weights = [norm.weight for norm in layer.heads or (layer.before, layer.before)]
        rows = [
            weight[: self._model.size].expand(count, -1)
            for weight, count in zip(weights, counts, strict=True)
        ]
        return torch.cat(rows)

    def _head_bias(self, layer: Any) -> Tensor:
        """(H + 2K, size), or no rows."""
        bias, size = layer.qkv.bias, self._model.size
        return self._model.embedding.new_empty(0, size) if bias is None else bias.view(-1, size)

    def __call__(
        self, frame: TreeFrame, cache: StaticKV, taps: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits (width, V) and layer -> (width, D) hidden states, see ``CompactModel``; writes
        keys and values.
        """
        positions = frame.find_positions()
        return self._run(
            cache, frame.fed, positions, positions, frame.span, frame.biases, frame.width, taps
        )

    def accept(self, logits: Tensor, frame: TreeFrame, cache: StaticKV, moved: int) -> np.ndarray:
        """See ``specbench.models.fast.frame.accept``."""
        out = np.empty(3 + (2 * moved or frame.width), dtype=np.float32)
        forced = NO_PICKS if frame.forced is None else frame.forced.numpy()
        self._kernels.accept(
            self._read_logits(logits), forced, *frame.read_tree(), cache.array, moved, out
        )
        return out

    def lay_out(self, rows: PackedRows, room: int) -> PackedLayout:
        """room: [slots] of a place."""
        above: list[int] = []
        for parents in rows.parents:
            above.append(ROOT)
            above += parents
        handles, windows, bounds = rows.handles, self._constants[0], np.array(rows.bounds)
        counts, starts = bounds[1:] - bounds[:-1], np.array([each.place for each in handles]) * room
        lengths = np.array([each.length for each in handles])
        spans = np.array((bounds[:-1], counts, starts, lengths, lengths)).T.copy()
        count = len(rows)
        laid = np.array(above), spans, *self._make_layout(count, int(counts.max()))
        return PackedLayout(
            rows.ids.numpy(), *laid, self._kernels.lay_out(*laid[:2], windows, *laid[2:])
        )

    def _make_layout(self, count: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Memory for places, reach and biases. count, most: rows of all requests, and of one."""
        biases = np.empty((len(self._constants[0]), count, most), self._kind)
        return np.empty(count, np.int64), np.empty(count, np.float32), biases

    def pack(
        self, given: Sequence[int], most: int, firsts: np.ndarray, state: np.ndarray
    ) -> PackedLayout:
        """Lay out drafts of at most ``most`` nodes; valid until the next call. The rest: see
        ``kernels.pack``.
        """
        requests, windows = len(firsts), self._constants[0]
        sizes = count, _, _ = requests + (len(given) - requests) // 2, requests, most
        laid = self._layout
        if laid is None or sizes != self._sizes:
            ids, parents = np.empty((2, count), np.int64)
            spans = np.empty((requests, 5), np.int64)
            laid = self._layout = PackedLayout(
                ids, parents, spans, *self._make_layout(count, 1 + most)
            )
            self._sizes = sizes
        # numpy reads a list three times as slowly
        numbers = np.frombuffer(array("q", given), np.int64)
        shape = laid.ids, laid.parents, laid.spans, laid.places, laid.reach, laid.biases
        laid.depth = self._kernels.pack(numbers, firsts, state, windows, *shape)
        return laid

    def feed_packed(
        self, cache: StaticKV, layout: PackedLayout, wanted: int, taps: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits (wanted, V) of the last rows, and layer -> (n, D) hidden states."""
        biases = [layout.biases[0], layout.biases[-1]]
        return self._run(
            cache, layout.ids, layout.places, layout.places, layout.spans, biases, wanted, taps
        )

    def accept_packed(
        self, logits: Tensor, layout: PackedLayout, cache: StaticKV, picks: Tensor | None,
        state: np.ndarray, eos: np.ndarray = NO_EOS,
    ) -> tuple[list[int], int, int, int]:  # fmt: skip
        """``found`` of ``kernels.accept_all`` row by row, as far as any request emits, and what
        that returns.

        picks: (n,) of the rows; None: their argmax. state: (3, B).
        """
        forced = NO_PICKS if picks is None else picks.numpy()
        most, *sums = self._kernels.accept_all(
            self._read_logits(logits), forced, layout.ids, layout.parents, layout.reach,
            layout.spans, cache.array, state, eos, layout.depth, layout.found,
        )  # fmt: skip
        return layout.found[: 2 + 2 * most].ravel().tolist(), *sums

    def _read_logits(self, logits: Tensor) -> np.ndarray:
        """The array of (n, V) logits, which is known if they are those of the last forward, in
        single precision.
        """
        array, tensor = self._last
        return array if tensor is logits else stored(logits)

    def read(
        self, cache: StaticKV, ids: Sequence[int], taps: Sequence[int]
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """A prompt's (T, D) states into an empty cache, and layer -> (T, D) of ``taps``."""
        places, last = np.arange(len(ids)), len(self._model.layers)
        rows, span = TreeRows(None, range(len(ids))), [[0, len(ids), 0, 0, 0]]
        _, hidden = self._run(
            cache, np.array(ids), places, places, span, self._list_biases([rows]), 0, [*taps, last]
        )
        return hidden[last], {tap: hidden[tap] for tap in taps}

    def feed(
        self,
        cache: StaticKV,
        ids: np.ndarray,
        places: np.ndarray,
        turned: np.ndarray,
        spans: Sequence[Sequence[int]],
        trees: Sequence[TreeRows],
        wanted: int,
    ) -> Tensor:
        """Return (wanted, V) logits of the last of all rows. trees: of each request. The rest: see
        ``kernels``.
        """
        return self._run(cache, ids, places, turned, spans, self._list_biases(trees), wanted, ())[0]

    def _list_biases(self, parts: Sequence[TreeRows]) -> list[np.ndarray]:
        """Return for each kind of attention (m, n) numbers, 0 where a row sees a node of its
        request.
        """
        found = []
        for window in self._model.windows.values():
            seen = [rows.list_near(window) for rows in parts]
            shape = sum(map(len, seen)), max(near.shape[1] for near in seen)
            bias, first = np.ones(shape, stored(self._model.embedding).dtype), 0
            for near in seen:
                bias[first : first + len(near), : near.shape[1]] = ~near
                first += len(near)
            found.append(bias)
        return found

    def _run(
        self,
        cache: StaticKV,
        ids: np.ndarray,
        places: np.ndarray,
        turned: np.ndarray,
        spans: Sequence[Sequence[int]] | np.ndarray,
        biases: Sequence[np.ndarray],
        wanted: int,
        asked: Sequence[int],
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """See ``kernels.forward``. biases: of each kind of attention. asked: taps."""
        taps = tuple(sorted({*asked}))
        if taps not in self._taps:
            self._taps[taps] = np.array(taps, dtype=np.int64)
        if wanted not in self._results:
            if wanted > len(self._logits):
                self._logits = np.empty((wanted, self._logits.shape[1]), np.float32)
                self._results.clear()
            own = self._logits[:wanted]
            self._results[wanted] = own, torch.from_numpy(own)
        logits, shared = self._last = self._results[wanted]
        width = self._untapped.shape[2]
        tapped = np.empty((len(taps), len(ids), width), np.float32) if taps else self._untapped
        given = (ids, places, turned, np.asarray(spans), biases[0], biases[-1], *self._constants,
                 cache.array, self._taps[taps], tapped, logits)  # fmt: skip
        call_compiled(self._kernels.forward, self._kernels, *given)
        hidden = {
            tap: torch.from_numpy(states).to(self._model.dtype)
            for tap, states in zip(taps, tapped, strict=True)
        }
        return shared if self._single else shared.to(self._model.dtype), hidden


def stack(parts: Sequence[Tensor]) -> np.ndarray:
    """Tensors of one shape, in single precision."""
    stacked: np.ndarray = torch.stack([part.float() for part in parts]).numpy()
    return stacked
