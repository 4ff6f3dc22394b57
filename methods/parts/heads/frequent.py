"""FR-Spec (Zhao et al. 2025, arXiv 2502.14856): the head drafts the target's frequent tokens alone.

Of the target's output matrix the rows of a list of ids are left, so a head over a large vocabulary costs less; what is
not in the list is never drafted. The list is the authors' ``freq_N.pt`` (github.com/thunlp/FR-Spec), or JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specbench.input import parse_json, read_file
from specbench.types import InputError

_FIX = "expected a list of different ids of the target, as JSON, or as a torch file such as freq_32768.pt"


def read_frequent(named: str, vocab: int, least: int) -> list[int]:
    """The ids of a list, in order of their number. vocab: [tokens] of the target. least: [tokens] that a draft needs.

    Raises InputError.
    """
    path, where = Path(named), f"vocabulary={named}"
    raw = read_file(path, "vocabulary=", _FIX)
    if path.suffix == ".json":
        found: Any = parse_json(raw, where, _FIX)
    else:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # the library's reader raises many kinds
            raise InputError(f"{where}: not a torch file of numbers ({type(error).__name__}); {_FIX}") from error
    ids = found.tolist() if isinstance(found, torch.Tensor) else found
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < vocab for token in ids):
        raise InputError(f"{where}: holds something that is no id below {vocab}; {_FIX}")
    if len(set(ids)) < len(ids) or len(ids) < least:
        raise InputError(
            f"{where}: holds {len(set(ids))} different ids of {len(ids)}; {_FIX}, at least {least} of them"
        )
    return sorted(ids)
