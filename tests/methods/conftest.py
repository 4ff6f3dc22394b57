"""The random model that most tests of methods decode with."""

from __future__ import annotations

import pytest
import torch

from builders.models import build


@pytest.fixture(scope="module")
def model():
    """A Llama in float64, which no test changes."""
    return build("llama", torch.float64)
