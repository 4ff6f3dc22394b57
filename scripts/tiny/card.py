"""The card of what was trained: what it is, how it was made and what it is not for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from tiny.train import TrainingSettings

_CARD = """---
license: apache-2.0
tags:
- speculative-decoding
- testing
---

# {settings.name}

{about}

| figure | value |
|---|---|
| parameters | {parameters:,} |
| steps | {settings.steps:,} |
| tokens (packed, prompts and answers) | {tokens:,} |
| wall time on a CPU, shared with other work | {minutes:.0f} min |
| Muon, AdamW | {settings.matrix_rate}, {settings.rate} |
{rows}

Made with `scripts/train_tiny.py {kind}` from conversations of the bundled world (`scripts/tiny/`), none of them from
the held-out part that the suite `mini` is drawn from.
{more}
"""


def write_card(
    folder: Path, kind: str, settings: TrainingSettings, module: nn.Module, seconds: float, about: str,
    figures: Mapping[str, object], more: str = "",
) -> None:  # fmt: skip
    """Write ``README.md``. kind: of ``scripts/train_tiny.py``. figures: further rows of the table."""
    card = _CARD.format(
        settings=settings,
        about=about,
        parameters=sum(weight.numel() for weight in module.parameters()),
        tokens=settings.steps * settings.rows * settings.length,
        minutes=seconds / 60,
        rows="\n".join(f"| {name} | {value} |" for name, value in figures.items()),
        kind=kind,
        more=more,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def percent(shares: list[float]) -> str:
    """Shares as they stand in a table."""
    return ", ".join(f"{share:.1%}" for share in shares)
