"""Messages between two processes as plain bytes: JSON, with the arrays and tensors in it as raw memory behind it.

Nothing that is received is ever executed or unpickled: a message can hold numbers, text, lists, mappings, arrays.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

MARK = "\x00array"  # reserved key, of the mapping that stands for an array: [dtype, shape, whether a tensor]


def encode(message: Any) -> bytes:
    """A message as bytes: 8 bytes length of the JSON, the JSON, the arrays. Raises TypeError for anything else."""
    arrays: list[bytes] = []

    def stand_in(value: Any) -> dict[str, Any]:
        tensor = isinstance(value, torch.Tensor)
        array = value.detach().cpu().numpy() if tensor else value
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            raise TypeError(f"a {type(value).__name__} cannot be sent; expected numbers, text, lists or arrays")
        arrays.append(np.ascontiguousarray(array).tobytes())
        return {MARK: [array.dtype.str, list(array.shape), tensor]}

    text = json.dumps(message, default=stand_in).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *arrays])


def decode(data: bytes) -> Any:
    """The message that ``encode`` was given; tuples come back as lists."""
    end = 8 + int.from_bytes(data[:8], "little")
    place = end

    def restore(value: dict[str, Any]) -> Any:
        nonlocal place
        if MARK not in value:
            return value
        kind, shape, tensor = value[MARK]
        dtype = np.dtype(kind)
        count = int(np.prod(shape))
        array = np.frombuffer(data, dtype, count, place).reshape(shape).copy()
        place += count * dtype.itemsize
        return torch.from_numpy(array) if tensor else array

    return json.loads(data[8:end], object_hook=restore)  # objects are restored in the order in which they were written
