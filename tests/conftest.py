"""Shared fixtures: everything runs offline, on one thread, which is far faster for tiny models.

A process does once what every run would do again: Hydra composes a configuration, the collector
walks through what is imported, a rank imports torch.
"""

import copy
import functools
import gc
import hashlib
import itertools
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
if not os.environ["CUDA_VISIBLE_DEVICES"]:
    # read when Triton is imported, and when a kernel is defined
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also of the commands that tests start
# no test writes into the user's cache; the processes share one
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="specbench-cache-")

import filelock
import hypothesis
import pytest

_ASSETS = Path(__file__).resolve().parent.parent / "specbench" / "assets"
# of a property that names no number: of ``make test``, and of every test
EXAMPLES = {False: 40, True: 200}
_FAMILIES = ("llama", "mistral", "qwen2")


def pytest_configure(config: pytest.Config) -> None:
    """Of several processes the first hands out tests and runs none."""
    every = "not exhaustive" not in config.option.markexpr
    hypothesis.settings.register_profile("here", deadline=None, max_examples=EXAMPLES[every])
    hypothesis.settings.load_profile("here")
    if getattr(config.option, "dist", "no") == "no":
        _prepare()


def _prepare() -> None:
    import torch
    import torch.multiprocessing
    import transformers

    from specbench.decode import check
    from specbench.measure import environment
    from specbench.models import load
    from specbench.runs import composition

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    # which refuses the same numbers; no file of a test must outlive the machine
    os.fsync = os.fstat

    # The same overrides give the same configuration. Each caller gets a copy, because a job deletes
    # from its configuration the methods that it leaves out.
    compose = functools.cache(composition.compose_config)

    def compose_small(name: str, overrides: Sequence[str]) -> Any:
        """On the narrow model where a test names none: what a step costs does not matter."""
        named = any(item.lstrip("+").startswith(("model=", "experiment=")) for item in overrides)
        return copy.deepcopy(
            compose(name, tuple(overrides) if named else ("model=tiny", *overrides))
        )

    composition.compose_config = compose_small

    # The same weights give the library's forward the same logits; an engine's are compared with
    # them in every run.
    check._plain = _once(check._plain, _plain_key)
    load.refuse_shapes = _once(load.refuse_shapes, _shapes_key)
    environment.git_state = _once(environment.git_state, str)
    environment.versions = _once(
        environment.versions, lambda: (torch.version.cuda, torch.backends.cudnn.version())
    )

    if "PYTEST_XDIST_WORKER" in os.environ:
        from numba.core.dispatcher import Dispatcher

        Dispatcher.compile = _in_turn(Dispatcher.compile)

    # A server imports what ranks and drafting processes need and forks them: a fresh process takes
    # seconds to import it. A command that a test starts has none of this, and spawns.
    multiprocessing.set_forkserver_preload(
        [
            "specbench.models.tensor_parallel.start",
            "methods.parts.parallel_draft",
            "ranks",
            "specbench.runs.sweep",
            *(f"transformers.models.{family}.modeling_{family}" for family in _FAMILIES),
        ]
    )
    get_context = torch.multiprocessing.get_context
    torch.multiprocessing.get_context = lambda kind=None: get_context(
        "forkserver" if kind == "spawn" else kind
    )


def _in_turn(compile_function: Callable) -> Callable:
    """One process compiles a function; another that needs it waits, and reads the file."""
    from numba.core.caching import NullCache
    from numba.core.compiler_lock import global_compiler_lock

    def compile_once(dispatcher, types):
        if isinstance(dispatcher._cache, NullCache):  # no file that another process could read
            return compile_function(dispatcher, types)
        key = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}{types}"
        place = Path(os.environ["XDG_CACHE_HOME"], hashlib.sha256(key.encode()).hexdigest())
        with global_compiler_lock, filelock.FileLock(place):  # in this order: threads compile too
            return compile_function(dispatcher, types)

    return compile_once


def _once(function: Callable, key_of: Callable[..., Hashable | None]) -> Callable:
    """``function`` with its results kept by the key of its arguments; None: not kept."""
    kept: dict[Hashable, object] = {}

    def call(*given):
        if (key := key_of(*given)) is None:
            return function(*given)
        if key not in kept:
            kept[key] = function(*given)
        return kept[key]

    return call


def _plain_key(model, ids) -> Hashable | None:
    """Of a bundled model on one device, by what its weights add up to: a changed weight is another
    model.
    """
    if "forward" not in vars(type(model)):  # several processes share it
        return None
    config, forward = model.config, getattr(model.forward, "__func__", None)
    if forward is None or not _is_bundled(config._name_or_path) or hasattr(model, "hf_device_map"):
        return None
    sums = tuple(float(each.sum()) for each in model.parameters())
    return forward, config._attn_implementation, model.dtype, sums, tuple(ids)


def _shapes_key(card, key) -> Hashable | None:
    return (
        (card.path, card.dtype, card.config.to_json_string(), key)
        if _is_bundled(card.path)
        else None
    )


def _is_bundled(path: str | None) -> bool:
    return str(path).startswith(str(_ASSETS))


# A run freezes what is alive, so that the collector need not visit it, and unfreezes it at its end.
# Here it stays frozen for some files of tests.
_FILES = itertools.count()
_unfreeze, gc.unfreeze = gc.unfreeze, lambda: None


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    if next(_FILES) % 8 == 0:
        _unfreeze()
        gc.collect()
        gc.freeze()


def pytest_runtest_teardown() -> None:
    """The first start of numba's threads sets torch's number, which would compile the code of
    several threads.
    """
    import torch

    torch.set_num_threads(1)


SHORT, PART = 2, 12  # parameters of a test that all run in every run; of more, one of so many


def pytest_unconfigure() -> None:
    """Triton's bindings report what is still alive at the end, which is all that is frozen."""
    _unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``exhaustive`` what is not on the diagonal of a ``matrix``, and eleven of twelve in a
    list.

    The diagonal has as many points as the longest axis, the others begin anew: it has every value
    of every axis. A list is the parameters of a test that has more than ``SHORT`` of them and no
    mark.
    """
    # of a test, names of an axis -> its values -> their places
    axes: dict[tuple, dict[tuple, int]] = {}
    cells = [(item, _coordinates(item)) for item in items if item.get_closest_marker("matrix")]
    for _, cell in cells:
        for axis, value in cell:
            places = axes.setdefault(axis, {})
            places.setdefault(value, len(places))
    # the longest first: none is left at the end
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item, cell in cells:
        point = [(axes[axis][value], len(axes[axis])) for axis, value in cell]
        longest = max(size for _, size in point)
        if not any(all(place == step % size for place, size in point) for step in range(longest)):
            item.add_marker(pytest.mark.exhaustive)
    lists: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not (item.get_closest_marker("matrix") or item.get_closest_marker("exhaustive")):
            lists.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for each in lists.values():
        for place, item in enumerate(each if len(each) > SHORT else ()):
            if place % PART:
                item.add_marker(pytest.mark.exhaustive)


def _coordinates(item: pytest.Function) -> list[tuple[tuple, tuple]]:
    """(axis, value) of each axis of a test's matrix; values are the same where they are the same
    object.
    """
    found = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        names = tuple(name.strip() for name in names)
        found.append(
            ((item.function, *names), tuple(id(item.callspec.params[name]) for name in names))
        )
    return found


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory):
    """The runs of several methods of this file."""
    from together import Together

    return Together(tmp_path_factory.mktemp("together"))


@pytest.fixture
def together(request, shared_runs):
    """The runs of the methods whose tests of this function were chosen, by the parameter
    ``name``.
    """
    here = [
        item
        for item in request.session.items
        if getattr(item, "function", None) is request.function
    ]
    shared_runs.chosen = tuple(dict.fromkeys(item.callspec.params["name"] for item in here))
    return shared_runs


class SteadyTime:
    """The module ``time`` of a machine on which work takes no time: a reading is 10 us after the
    last, or a sleep.
    """

    TICK_S = 1e-5

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += self.TICK_S
        return self.now_s

    thread_time = perf_counter

    def perf_counter_ns(self) -> int:
        return round(1e9 * self.perf_counter())

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(scope="module")
def steady_time():
    """Times of decoding that are the same on every machine: those of its clock, and of requests
    that share forwards.
    """
    time = SteadyTime()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specbench.measure.clock.time", time)
        patch.setattr("specbench.decode.together.time", time)
        yield time


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; a test that needs it is skipped, with the reason, where it is
    absent.
    """
    folder = os.environ.get("SPECBENCH_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip(
            "SPECBENCH_DATA is not set: the real suites, tokenizers and traces are not here"
        )
    return Path(folder)
