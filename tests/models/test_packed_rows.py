"""Packed rows of several requests in Triton's interpreter: what they see, what is accepted, and
where it moves.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.test_fast import Tape

from builders.engines import CPU
from builders.fake_cuda import READ, UPLOAD, FakeCuda
from builders.models import build
from playback import Playback
from specbench.decode.walk import Walk
from specbench.models.batch import Handle, PackedRows, PaddedRows
from specbench.models.engine import SILENT, Silent
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.batch import PackedFrame, RecordedBatch, RecordedPlaces
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.graphs import GRAPHED
from specbench.models.fast.masks import PlacesMask, TreeMask
from specbench.models.verify import find_accepted_path
from specbench.types import Draft, Needs, Step

kernels = pytest.importorskip(
    "specbench.models.fast.kernels.packed_rows",
    reason="Triton is not installed: pip install '.[triton]'", exc_type=ImportError,
)  # fmt: skip
from specbench.models.fast.kernels import tree_attention  # noqa: E402

ROOM, NODES = 90, 40
ERROR = {torch.float32: 2e-6, torch.float16: 2e-3}


def places_for(
    requests: int, groups: int = 1, dtype=torch.float32, windows=(None,)
) -> SimpleNamespace:
    """What a frame needs to know of ``RecordedPlaces``."""
    engine = SimpleNamespace(
        device=CPU,
        max_nodes=NODES,
        dtype=dtype,
        compact=SimpleNamespace(groups=groups),
        windows={str(each): each for each in windows},
        attend=tree_attention.attend,
    )
    return SimpleNamespace(engine=engine, requests=requests, room=ROOM)


@st.composite
def companies(draw, tokens: int = 3) -> list[Handle]:
    """Requests in places of their own, in any order, with trees of few tokens, so that paths are
    accepted.
    """
    found = []
    for place in draw(st.permutations(range(5)))[: draw(st.integers(1, 5))]:
        count = draw(st.sampled_from([0, 1, 3, 8, 17, NODES]))
        parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
        passenger = draw(
            st.none()
            | st.lists(st.sampled_from([False, False, False, True]), min_size=count, max_size=count)
        )
        handle = Handle(
            Needs(), SILENT, place=place, length=draw(st.sampled_from([0, 1, 31, 32, 33, 48]))
        )
        handle.root = draw(st.integers(0, tokens - 1))
        ids = [draw(st.integers(0, tokens - 1)) for _ in range(count)]
        handle.take(Draft(ids, parents, passenger=passenger), NODES)
        found.append(handle)
    return found


def fill(handles, padding: int, **about) -> tuple[PackedFrame, PackedRows]:
    bounds = [0, *np.cumsum([1 + len(each.draft) for each in handles]).tolist()]
    frame = PackedFrame(bounds[-1] + padding, places_for(5, **about))
    frame.fill(handles)
    return frame, PackedRows(
        handles, [each.parents for each in handles], bounds, frame.ids[: bounds[-1]]
    )


def accept(frame, logits, slots):
    rows = frame.ids, frame.parents, frame.free, frame.slots
    return kernels.accept(logits, *rows, frame.spans, slots, frame.deepest).tolist()


def move_by_hand(frame, rows, paths, before, backwards=False):
    """The cache after the accepted paths moved, one slot after the other."""
    slots = before.clone()
    for number, path in enumerate(paths):
        first = rows.bounds[number]
        moves = [
            (int(frame.slots[first + 1 + node]), int(frame.slots[first]) + 1 + to)
            for to, node in enumerate(path)
        ]
        for source, target in moves[::-1] if backwards else moves:
            slots[:, :, target] = slots[:, :, source]
    return slots


@settings(max_examples=25)
@given(companies(), st.sampled_from([0, 5]), st.integers(0, 2**16))
def test_acceptance_is_the_walks(handles, padding, seed):
    frame, rows = fill(handles, padding)
    random = torch.Generator().manual_seed(seed)
    logits, before = (
        torch.rand(frame.width, 3, generator=random),
        torch.rand(2, 6, 5 * ROOM + 1, 4, generator=random),
    )
    broken = seed % 4 == 0
    if broken:
        logits[rows.bounds[1] - 1, 1] = float("nan")
    slots, paths = before.clone(), []
    found, picks = accept(frame, logits, slots), logits.argmax(-1).tolist()
    for number, handle in enumerate(handles):
        first, (count, last) = rows.bounds[number], found[2 * number : 2 * number + 2]
        if broken and number == 0:
            assert count < 0
            paths.append([])
            continue
        path = find_accepted_path(
            handle.draft.tokens, handle.parents, handle.draft.passenger, picks[first:]
        )
        paths.append(path)
        assert last == picks[first + (path[-1] + 1 if path else 0)]
        start = 2 * len(frame.spans) + first
        assert found[start : start + count] == path
        tokens = found[start + frame.width : start + frame.width + count]
        assert tokens == [handle.draft.tokens[node] for node in path]
    assert torch.equal(slots, move_by_hand(frame, rows, paths, before))


def one_path() -> tuple[PackedFrame, PackedRows, torch.Tensor]:
    """A chain of three below the second child of the root, whose tokens are all right."""
    handle = Handle(Needs(), SILENT, place=1, length=7)
    handle.root = 0
    handle.take(Draft([0, 1, 1, 1], [-1, -1, 1, 2]), NODES)
    return *fill([handle], 3), torch.tensor([[0.0, 1.0, 0.0]] * 8)


def test_a_path_that_moves_in_the_wrong_order_is_another_cache():
    frame, rows, logits = one_path()
    before = torch.rand(1, 2, 5 * ROOM + 1, 4)
    slots = before.clone()
    accept(frame, logits, slots)
    assert torch.equal(slots, move_by_hand(frame, rows, [[1, 2, 3]], before))
    assert not torch.equal(slots, move_by_hand(frame, rows, [[1, 2, 3]], before, backwards=True))


def test_parents_of_a_device_that_make_a_circle_end_the_walk():
    """A method's own fault on a device, which the host does not read, must not hang it."""
    frame, _, logits = one_path()
    frame.parents[:5] = torch.tensor([0, 3, 4, 2, 77])
    frame.make_input(0)
    accept(frame, logits, torch.rand(1, 2, 5 * ROOM + 1, 4))
    assert frame.depths[:5].tolist() == [0, 1, 1, 2, 1]


def attend(handles, padding, dtype, groups, window, wrong=None) -> tuple[float, float]:
    """How far our kernel, and SDPA in ``dtype``, are from float64 with the padded masks."""
    frame, rows = fill(handles, padding, groups=groups, dtype=dtype, windows=(window,))
    if wrong:
        wrong(frame)
    mask = frame.make_input(0).masks[str(window)]
    assert isinstance(mask, TreeMask)
    random = torch.Generator().manual_seed(len(rows))
    query = torch.randn(frame.width, 2 * groups, 16, generator=random).to(dtype)
    both = torch.randn(2, 1, 2, 5 * ROOM + 1, 16, generator=random).to(dtype)
    lengths = [0] * 5
    for each in handles:
        lengths[each.place] = each.length
    padded = PaddedRows(rows, lengths, 1 << 20)
    laid = np.zeros(padded.slots.size, dtype=np.int64)
    laid[padded.nodes] = np.arange(len(rows))
    at = torch.from_numpy(laid), torch.from_numpy(padded.nodes)

    def by_sdpa(number):
        seen = padded.build_mask(window, number).repeat(1, 1, groups, 1)
        kept = [each[:, :, :-1].to(number) for each in both]
        return PlacesMask(ROOM, padded.places, padded.end, *at, seen).attend(
            query[: len(rows)].to(number), *kept
        )

    right = by_sdpa(torch.float64)
    unread = torch.ones(5 * ROOM + 1, dtype=torch.bool)  # slots of no row and no context
    for handle in handles:
        unread[
            handle.place * ROOM : handle.place * ROOM + handle.length + 1 + len(handle.draft)
        ] = False
    keys, values = both.masked_fill(unread[:, None], float("nan"))
    got = mask.attend(query, keys, values, mask)[: len(rows)]
    return tuple(
        float((each.double() - right).norm() / right.norm()) for each in (got, by_sdpa(dtype))
    )


@settings(max_examples=8)
@given(
    companies(),
    st.sampled_from([0, 1, 30]),
    st.sampled_from(list(ERROR)),
    st.sampled_from([1, 3]),
    st.sampled_from([None, None, 4, 40]),
)
def test_tiles_attend_as_padded_masks_do(handles, padding, dtype, groups, window):
    ours, theirs = attend(handles, padding, dtype, groups, window)
    assert ours < max(ERROR[dtype], 2 * theirs)


def company(*sizes: int, first: int = 0) -> list[Handle]:
    """Requests with chains of ``sizes``, and contexts of different lengths."""
    found = []
    for number, size in enumerate(sizes):
        handle = Handle(Needs(), SILENT, place=(first + number) % 5, length=20 + 3 * number)
        handle.root = 1
        handle.take(Draft.chain([2] * size), NODES)
        found.append(handle)
    return found


@pytest.mark.parametrize("column", [0, 1], ids=["place", "length"])
def test_a_tile_of_another_place_is_seen(column):
    def swap(frame):
        frame.tiles[:2, column] = frame.tiles[:2, column].flip(0)

    handles = company(3, 5)
    assert attend(handles, 2, torch.float32, 1, None)[0] < 1e-6
    # NaN where it reads slots of nobody
    assert not attend(handles, 2, torch.float32, 1, None, swap)[0] < 1e-2


def launches(patch, tape: Tape) -> None:
    """Enter the launches of kernels on the tape, with their shapes; they compute nothing."""

    def launch(executor, *given, **named):
        sizes = [each.shape if isinstance(each, torch.Tensor) else each for each in given]
        tape.seen.append((executor.fn.__name__, executor.grid, sizes, named))

    patch.setattr("triton.runtime.interpreter.GridExecutor.__call__", launch)


def engine_for(
    model, requests: int = 5, context: int = ROOM, **options
) -> tuple[FastEngine, RecordedPlaces]:
    engine = FastEngine(
        model, context, frozenset(), NODES, GRAPHED, FastOptions(attention="triton", **options)
    )
    return engine, RecordedPlaces(engine, requests, ROOM)


def test_any_company_takes_the_same_operations():
    _, places = engine_for(build("llama"))
    found = []
    for handles in (company(0, 0, 0, 0, 9), company(20, first=3), company(6, 5, 4)):
        rows = sum(1 + len(each.draft) for each in handles)
        frame = places.find_frame(rows)
        assert frame.width == (24 if rows > 16 else 16)
        frame.fill(handles)
        with pytest.MonkeyPatch.context() as patch, Tape() as tape:
            launches(patch, tape)
            logits, _ = places.feed(frame, ())
            places.accept(frame, logits)
        found.append((frame.width, tape.seen))
    by_width = dict(found)
    assert all(seen == by_width[width] for width, seen in found)
    names = {name for name, *_ in found[0][1]}
    assert {"lay_out_rows", "attend_split", "accept_rows", "move_rows"} <= names


@pytest.mark.parametrize("requests", [1, 8, 32])
def test_the_recordings_are_those_of_widths(requests):
    """Forwards and acceptances, whoever takes part; those of a second batch are the first one's."""
    engine, _ = engine_for(build("llama"))
    made = []
    for needed, number in ((((), True), requests), (((1,), False), 1), (None, requests + 1)):
        if needed:
            engine.prepared[needed] = None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(f"{RecordedBatch.__module__}.Graphs", Counted)
            batch = RecordedBatch(engine, number, 20, Silent())
        made.append((batch._places, len(batch._places.graphs._recorded)))
        batch.end()
    (places, forwards), (again, more), (other, _) = made
    assert places is again is not other
    rows = range(1, min(1024, requests * (NODES + 1)) + 1)
    widths = {places.find_frame(each).width for each in rows}
    assert widths == set(places.acceptances._recorded), "no step records"
    assert (forwards, more) == (len(widths), 2 * len(widths))


class Counted(Playback):
    """Records nothing but which calls it would."""

    def __init__(self, device) -> None:
        super().__init__(SimpleNamespace())

    def run(self, key, call):
        return self._recorded.setdefault(key, (torch.empty(0), {}))


def test_a_step_waits_once_and_no_upload_waits():
    """A tree of the host, one of the device, and a chain of its tokens, on tensors labelled
    cuda.
    """
    model = copy.deepcopy(build("llama"))
    with FakeCuda() as mode:
        model.to("cuda")
        engine = FastEngine(
            model, ROOM, frozenset(), NODES, options=FastOptions(attention="triton")
        )
        batch = engine.batch(3, 60)
        needs = [Needs(), Needs(hidden=(1,), node_topk=3, read_topk=True), Needs()]
        handles = [
            batch.open([5 + each, 17, 3], 30, Walk(None, 0), need)
            for each, need in enumerate(needs)
        ]
        for handle in handles:
            batch.prefill(handle)
        for _ in range(2):
            ids, parents = (
                torch.tensor([7, 8, 9], device="cuda"),
                torch.tensor([-1, -1, 1], device="cuda"),
            )
            drafts = [Draft([7, 8, 9], [-1, -1, 1]), Draft(ids, parents, depth=2), Draft.chain(ids)]
            mode.blocking.clear()
            before = mode.launched
            batch.forward(handles, drafts)
            steps = batch.settle()
            assert (mode.blocking[READ], mode.blocking[UPLOAD]) == (1, 0)
            assert mode.launched - before < 20
            assert all(isinstance(step, Step) for step in steps)
            assert [*steps[1].parents] == [-1, -1, 1]
