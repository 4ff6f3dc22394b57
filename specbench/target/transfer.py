"""The way from the host to a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def upload(
    values: Sequence[Any] | np.ndarray | Tensor, device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """``values`` on ``device``. A GPU copies them from pinned memory, for which the host does not wait.

    On a CPU an array keeps its memory, and a tensor is itself.
    """
    host = torch.as_tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)
