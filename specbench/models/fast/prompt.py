"""A prompt as inputs of the compact forward: chunks, but one on a GPU where no sliding window takes a mask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from specbench.models.chunks import list_chunks, list_masked_chunks
from specbench.models.fast.compact import CompactModel, ForwardInput
from specbench.models.fast.static_kv import StaticKV
from specbench.models.transfer import upload
from specbench.models.tree import build_causal_mask


def list_prompt_inputs(
    ids: Tensor, windows: Mapping[str, int | None], dtype: torch.dtype, start: int, context: int
) -> Iterator[ForwardInput]:
    """A prompt (n,) into empty slots from ``start`` on. windows: attention kind -> sliding window [positions].

    context: [tokens] of the model; what is behind it stands at its last position.
    """
    count = len(ids)
    masked = any(window is not None and window < count for window in windows.values())
    host = ids.device.type == "cpu"  # of ``attend_behind``, which needs no mask
    unmasked = list_chunks(count) if host else [slice(0, count)]
    for part in list_masked_chunks(count) if masked else unmasked:
        places, masks = torch.arange(part.start, part.stop, device=ids.device), dict[str, Tensor | None]()
        for kind, window in windows.items():
            causal = (host or part.start == 0) and (window is None or window >= part.stop)
            built = None if causal else build_causal_mask(part.stop, window, dtype, part.start)[0, 0]
            masks[kind] = None if built is None else upload(built, ids.device, dtype)
        slots = places + start if start else places
        yield ForwardInput(ids[part], places.clamp(max=context - 1), slots, part.stop, masks, True, start)


def read_prompt(
    model: CompactModel, cache: StaticKV, inputs: Iterator[ForwardInput], count: int, taps: tuple[int, ...]
) -> tuple[Tensor, dict[int, Tensor]]:
    """(count, D) states of the inputs' tokens, and layer -> (count, D) of ``taps``.

    They are written where they stay: chunks that are kept to be joined are held twice, and lie between what a forward
    frees, so that a next one cannot use it.
    """
    whole, first = list[Tensor](), 0
    for each in inputs:
        states, tapped = model(each, cache, taps)
        if len(states) == count:
            return states, tapped
        parts = [states, *(tapped[tap] for tap in taps)]
        whole = whole or [part.new_empty(count, part.shape[1]) for part in parts]
        for place, part in zip(whole, parts, strict=True):
            place[first : first + len(part)] = part
        first += len(states)
    return whole[0], dict(zip(taps, whole[1:], strict=True))
