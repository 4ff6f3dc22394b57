"""The sweep drives any engine by its interface: what is fed, behind which context, in which order,
what comes out.
"""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from builders.runs import job_for
from specbench.decode import latency
from specbench.decode.latency import (
    Bench,
    Limits,
    best_of,
    measure_ceilings,
    shape_of,
    sweep,
    sweep_rows,
    traits_of,
)
from specbench.models.engine import Engine
from specbench.models.fast.graphs import GRAPHED
from specbench.profile import Ceilings
from specbench.runs.session import set_stage
from specbench.types import InputError, Prefill, Step

CPU = torch.device("cpu")


class Scripted(Engine):
    """Takes a given time on its own clock; records the requests."""

    def __init__(self, cost):
        self.kind, self.context, self.max_nodes, self.eos, self.fed = (
            "scripted",
            4096,
            600,
            frozenset(),
            0,
        )
        self.cost, self.now, self.seen, self.prompts, self.cached = cost, 0, [], [], 0

    def reserve(self, tokens):
        self.room = tokens

    def start(self, prompt, limit, walk, needs, laps):
        self.cached, self.laps, self.rows = len(prompt), laps, needs.rows
        self.prompts.append(len(prompt))
        return Prefill(prompt[0])

    def forward(self, draft):
        starts = sum(parent < 0 for parent in draft.parents)
        self.fed = len(draft) + (starts if self.rows and starts > 1 else 1)
        self.seen.append((self.fed, self.cached))
        self.now += int(1e6 * self.cost(self.fed, self.cached, len(self.seen)))
        self.laps.lap("forward")

    def settle(self, left, late=None):
        assert left == 1
        assert self.cached < self.room
        self.cached += 1
        self.now += 250_000
        self.laps.lap("verify")
        return Step(0, (1,), (), False)

    def gaps(self, prompt, ids):
        raise NotImplementedError


@pytest.fixture
def scripted(monkeypatch):
    """An engine whose time is the clock's: cost(fed, context, visit) [ms]."""

    def make(cost) -> tuple[Scripted, Bench]:
        engine = Scripted(cost)
        monkeypatch.setattr("specbench.measure.clock.time.perf_counter_ns", lambda: engine.now)
        return engine, Bench(engine, CPU, 100)

    return make


def test_every_point_is_its_forwards_median_and_the_rest_is_host_time(scripted):
    _, bench = scripted(lambda fed, cached, visit: 2.0 + 0.5 * fed)
    grid, control = sweep(bench, [1, 4, 16], [50, 400], rounds=5)
    assert grid.ms == pytest.approx(np.array([[2.5, 4.0, 10.0]] * 2))
    assert grid.host_ms == pytest.approx(0.25)
    assert grid.spread == pytest.approx(0)
    assert control == pytest.approx((1.0, 1.0))


def test_a_run_measures_its_steps_by_their_least_times_which_never_fall_with_more_rows(scripted):
    """A process that makes every third forward five times as slow changes nothing; forward and host
    time both count.
    """
    engine, _ = scripted(
        lambda fed, cached, visit: (2.0 + 0.5 * fed) * (5 if visit % 3 == 0 else 1)
    )
    found = latency.measure_steps(engine, CPU, 100)
    assert list(found) == list(latency.STEP_ROWS)
    assert found == pytest.approx({rows: 2.25 + 0.5 * rows for rows in found})
    contexts = [cached for _, cached in engine.seen]
    assert min(contexts) > 0.9 * latency.STEP_CONTEXT
    step_s = latency.price_rows(latency.profile_of_steps(found, engine))
    assert [step_s(rows) for rows in (1, 4, 65, 129)] == pytest.approx(
        [2.75e-3, 4.25e-3, 34.75e-3, 66.75e-3]
    )
    engine.max_nodes = 6  # wider steps are not taken, and the last slope continues
    assert list(latency.measure_steps(engine, CPU, 100)) == [1, 2, 3, 5]
    falling, _ = scripted(lambda fed, cached, visit: 8.0 if fed == 1 else 2.0)
    assert set(latency.measure_steps(falling, CPU, 100).values()) == {2.25}


def test_points_are_interleaved_and_contexts_stay_where_they_were_asked(scripted):
    engine, bench = scripted(lambda fed, cached, visit: latency._SETTLING)
    sweep(bench, [1, 2, 4, 8], [60, 600], rounds=6)
    near = [context for _, context in engine.seen]
    assert {min((60, 600), key=lambda asked: abs(asked - cached)) for cached in near} == {60, 600}
    assert all(abs(cached - 60) <= 8 or abs(cached - 600) <= 30 for cached in near)
    first = [fed for fed, _ in engine.seen[:10]]
    assert first[::2] == first[1::2]  # each width behind one of its own
    # a round is every point once, the single token twice
    assert Counter(first[::2]) == Counter([1, 1, 2, 4, 8])
    visits = np.array(near) > 300
    assert np.abs(np.diff(visits.astype(int))).sum() == 2 * latency.PASSES - 1


@pytest.mark.parametrize("rows", [False, True])
def test_a_points_rounds_read_keys_of_one_length(scripted, rows):
    """The contexts' jitter stays in front of a step of lengths, or behind it, as the context that
    is asked for does.
    """
    contexts = [576, 606, 607, 608, 1096, 2143]
    for buckets in (GRAPHED, None):
        engine, bench = scripted(lambda fed, cached, visit: latency._SETTLING)
        engine.buckets = buckets
        if rows:
            sweep_rows(bench, [1, 2, 8], [0, 3, 7], contexts, rounds=6)
        else:
            sweep(bench, [1, 2, 4, 8, 16, 32, 64], contexts, rounds=6)
        timed = engine.seen[1::2]  # the second of two of a width
        asked = [min(contexts, key=lambda each: abs(each - cached)) for _, cached in timed]
        lengths = [
            {GRAPHED.length(past + GRAPHED.width(fed), 4096) for past in (cached, context)}
            for (fed, cached), context in zip(timed, asked, strict=True)
            if context not in (607, 608)  # which of the two was meant is not known from here
        ]
        assert all(len(each) == 1 for each in lengths) is (buckets is not None)


def test_a_width_is_timed_when_the_caches_hold_what_it_needs(scripted):
    """Behind another width a forward of 1 ms takes 3 ms, and less with each that follows."""
    widths = [0]

    def cost(fed, cached, visit):
        widths.append(fed)
        run = next(count for count, width in enumerate(reversed(widths)) if width != fed)
        return 1.0 + 2.0 * 0.4 ** (run - 1)

    engine, bench = scripted(cost)
    grid, _ = sweep(bench, [1, 8], [25, 300], rounds=3)
    assert grid.ms == pytest.approx(1.0, rel=0.05)
    assert all(min(abs(cached - 25), abs(cached - 300)) <= 16 for _, cached in engine.seen)


def test_a_slow_spell_moves_all_points_alike_and_not_the_ratio(scripted):
    _, bench = scripted(
        lambda fed, cached, visit: (10.0 + 10 * fed) * (3 if 80 < visit < 150 else 1)
    )
    grid, _ = sweep(bench, [1, 8], [100], rounds=31)
    assert grid.ms[0, 1] / grid.ms[0, 0] == pytest.approx(4.5, rel=0.05)


def test_rows_are_fed_as_a_batch_and_a_shape_without_a_draft_is_blank(scripted):
    _, bench = scripted(lambda fed, cached, visit: float(fed))
    found = sweep_rows(bench, [1, 2, 4], [0, 3], [25], rounds=3)
    assert found.ms[0] == pytest.approx(np.array([[1, 4], [np.nan, 8], [np.nan, 16]]), nan_ok=True)
    assert found.slowdown(25)[2, 1] == 16


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0, [1], [100]), "rounds=0"),
        ((3, [4, 1], [100]), "ascending"),
        ((3, [0, 4], [100]), "from 1 up"),
        ((3, [1, 8], [4000]), "200 committed on the way"),
        ((3, [1], []), "contexts"),
        # nothing would be of one token
        ((3, [1], [100], ([1, 2], [1, 3], [25])), r"w=.*expected 0 to be the first"),
        ((3, [1], [100], ([1, 64], [0, 15], [25])), "600 nodes"),
        ((3, [1], [100], ([1, 2], [0, 3], [4096])), "row-contexts"),
    ],
)
def test_points_that_cannot_be_driven_are_refused(given, message):
    limits = Limits(600, 4096)
    with pytest.raises(InputError, match=message):
        limits.check(*given)
    limits.check(3, [1], [100], ([1, 32], [0, 15], [25, 500]))


@pytest.mark.parametrize("engine", ["eager", "fast"])
def test_a_real_engine_is_driven_and_its_model_measured(engine):
    job = job_for("model=tiny", f"engine={engine}", "method=[]")
    with set_stage(job) as stage:
        bench = Bench(stage.engine, CPU, stage.target.vocab_size)
        grid, _ = sweep(bench, [1, 8], [30], rounds=3)
        assert (grid.ms > 0).all()
        assert (grid.host_ms > 0).all()
        rows = sweep_rows(bench, [1, 2], [0, 2], [30], rounds=1)
        assert np.isfinite(rows.ms).sum() == 3
        shape = shape_of(stage.target.model)
        config = stage.target.model.config
        total = sum(parameter.numel() for parameter in stage.target.model.parameters())
        embedding = config.vocab_size * config.hidden_size
        assert shape.streamed == (total if config.tie_word_embeddings else total - embedding)
        assert (shape.layers, shape.value_bytes) == (config.num_hidden_layers, 4)
        traits = traits_of(stage.engine, stage.target.model, shared=False)
        assert (traits["parameters"], traits["shape"]) == (total, shape)
        assert traits_of(stage.engine, stage.target.model, shared=True)["shape"] is None


@pytest.mark.parametrize(
    ("free", "buffer", "side"), [(1 << 40, 1 << 20, 1024), (1 << 16, 1 << 14, 45)]
)
def test_buffers_fit_into_the_memory_that_is_free(free, buffer, side, monkeypatch):
    sizes = []

    def noting(make):
        return lambda *given, **named: sizes.append(made := make(*given, **named)) or made

    for name in ("ones", "empty_like", "randn"):
        monkeypatch.setattr(torch, name, noting(getattr(torch, name)))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=free))
    assert measure_ceilings(CPU, torch.float32, size=1 << 20).read_gb_s > 0
    assert {each.nbytes for each in sizes[:2]} == {buffer}
    assert {each.shape for each in sizes[2:]} == {(side, side)}
    assert sum(each.nbytes for each in sizes[:2]) < free


def test_ceilings_are_of_this_machine_and_the_better_of_two():
    found = best_of(measure_ceilings(CPU, torch.float32, size=1 << 22), Ceilings(1e9, 1e-9, 1e9))
    assert (found.read_gb_s, found.matmul_gflop_s) == (1e9, 1e9)
    assert found.copy_gb_s > 0.1
    assert measure_ceilings(CPU, torch.float32, size=1 << 22).matmul_gflop_s > 0.1
