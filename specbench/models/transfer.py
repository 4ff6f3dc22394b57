"""Transfers between the host and a device: pinned uploads without waiting, and downloads in one
wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor


def upload(
    values: Sequence[Any] | np.ndarray | Tensor,
    device: torch.device,
    dtype: torch.dtype = torch.int64,
) -> Tensor:
    """Upload ``values``. A GPU copies them from pinned memory, and the host does not wait for it.

    On a CPU an array is not copied, and a tensor is returned unchanged.
    """
    if not isinstance(values, (np.ndarray, Tensor)):
        values = np.array(values)  # torch reads a list four times as slowly
    host = torch.as_tensor(values, dtype=dtype)
    return (
        host.pin_memory().to(device, non_blocking=True)
        if device.type == "cuda"
        else host.to(device)
    )


def stored(numbers: Tensor) -> np.ndarray:
    """A tensor's own memory, on a CPU; of bfloat16, which numpy lacks, the bits."""
    array: np.ndarray = (
        numbers.view(torch.int16) if numbers.dtype == torch.bfloat16 else numbers
    ).numpy()
    return array


def write(buffer: Tensor, values: Tensor) -> None:
    """Enqueue the copy of ``values``, on the host, into a buffer; the caller may free them
    immediately.
    """
    buffer.copy_(values.pin_memory() if buffer.device.type == "cuda" else values, non_blocking=True)


def download(*parts: Tensor) -> list[Tensor]:
    """Download the parts as float64 in one wait for the device; exact for ids, since all are below
    2^53.
    """
    flat = torch.cat([part.double().flatten() for part in parts]).cpu()
    pieces = flat.split([part.numel() for part in parts])
    return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]


def read_numbers(*parts: Tensor | np.ndarray) -> list[list[float]]:
    """Download (n,) tensors, or arrays of compiled code, as lists, in one wait for the device."""
    if len(parts) == 1:
        return [parts[0].tolist()]
    tensors = [torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in parts]
    numbers = iter(torch.cat([tensor.double() for tensor in tensors]).tolist())
    return [list(islice(numbers, len(part))) for part in parts]
