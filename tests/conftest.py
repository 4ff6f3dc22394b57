"""Shared fixtures: everything runs offline, on one thread, which is far faster for tiny models."""

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also of the commands that tests start
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="specbench-cache-")  # no test writes into the user's cache

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data; a test that needs it is skipped, with the reason, where it is absent."""
    folder = os.environ.get("SPECBENCH_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("SPECBENCH_DATA is not set: the real suites, tokenizers and traces are not here")
    return Path(folder)
