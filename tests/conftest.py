"""Shared fixtures: everything runs offline, on one thread, which is far faster for tiny models.

A process does once what every run would do again: Hydra composes a configuration, the collector walks through what is
imported, a rank imports torch.
"""

import functools
import gc
import itertools
import multiprocessing
import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
if not os.environ["CUDA_VISIBLE_DEVICES"]:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported, and when a kernel is defined
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also of the commands that tests start
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="specbench-cache-")  # no test writes into the user's cache

import pytest
import torch
import torch.multiprocessing
import transformers

from specbench import cli, composition
from together import Together

torch.set_num_threads(1)
transformers.utils.logging.disable_progress_bar()

# The same overrides give the same configuration, and nothing changes one that is composed.
_compose = functools.cache(composition.compose_config)
cli.compose_config = composition.compose_config = lambda name, overrides: _compose(name, tuple(overrides))

# A server imports what ranks and drafting processes need and forks them: a fresh process takes seconds to import it.
# A command that a test starts has none of this, and spawns.
_MODELS = [f"transformers.models.{family}.modeling_{family}" for family in ("llama", "mistral", "qwen2")]
multiprocessing.set_forkserver_preload(
    [
        "specbench.target.tensor_parallel.start",
        "methods.parts.draft_lm.parallel_draft",
        "ranks",
        "specbench.cli",
        *_MODELS,
    ]
)
_get_context = torch.multiprocessing.get_context
torch.multiprocessing.get_context = lambda kind=None: _get_context("forkserver" if kind == "spawn" else kind)

# A run freezes what is alive, so that the collector need not visit it, and unfreezes it at its end. Here it stays
# frozen for some files of tests.
_FILES = itertools.count()
_unfreeze, gc.unfreeze = gc.unfreeze, lambda: None


@pytest.fixture(scope="module", autouse=True)
def _frozen():
    if next(_FILES) % 8 == 0:
        _unfreeze()
        gc.collect()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Triton's bindings report what is still alive at the end, which is all that is frozen."""
    _unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``exhaustive`` what is not on the diagonal of a ``matrix``.

    The diagonal has as many points as the longest axis, the others begin anew: it has every value of every axis.
    """
    axes: dict[tuple, dict[tuple, int]] = {}  # of a test, names of an axis -> its values -> their places
    cells = [(item, _coordinates(item)) for item in items if item.get_closest_marker("matrix")]
    for _, cell in cells:
        for axis, value in cell:
            places = axes.setdefault(axis, {})
            places.setdefault(value, len(places))
    for item, cell in cells:
        point = [(axes[axis][value], len(axes[axis])) for axis, value in cell]
        longest = max(size for _, size in point)
        if not any(all(place == step % size for place, size in point) for step in range(longest)):
            item.add_marker(pytest.mark.exhaustive)


def _coordinates(item: pytest.Function) -> list[tuple[tuple, tuple]]:
    """(axis, value) of each axis of a test's matrix; values are the same where they are the same object."""
    found = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        names = tuple(name.strip() for name in names)
        found.append(((item.function, *names), tuple(id(item.callspec.params[name]) for name in names)))
    return found


@pytest.fixture(scope="module")
def together(request, tmp_path_factory) -> Together:
    """Of the chosen tests of this file with a parameter ``name``, which is a method's."""
    here = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    names = dict.fromkeys(item.callspec.params["name"] for item in here if "name" in item.callspec.params)
    return Together(list(names), tmp_path_factory.mktemp("together"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; a test that needs it is skipped, with the reason, where it is absent."""
    folder = os.environ.get("SPECBENCH_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("SPECBENCH_DATA is not set: the real suites, tokenizers and traces are not here")
    return Path(folder)
