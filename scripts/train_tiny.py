"""Train a bundled model, a head for it, or the draft model that drafts in parallel, on the bundled world.

    python scripts/train_tiny.py model --name tiny_draft
    python scripts/train_tiny.py head --kind eagle3 --name tiny_eagle3 --intermediate 160 --steps 1400
    python scripts/train_tiny.py head --kind mtp --name tiny_mtp --steps 900
    python scripts/train_tiny.py head --kind p_eagle --name tiny_p_eagle --intermediate 160 --steps 700 --rows 1 \\
        --passes 7
    python scripts/train_tiny.py pard

On a machine that is shared with other work set ``OMP_WAIT_POLICY=PASSIVE``, or waiting threads burn the other cores.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from tiny.head_training import HeadSettings, new_head
from tiny.model import new_model
from tiny.pard_training import PardSettings, new_pard
from tiny.train import ASSETS, Trainee, TrainingSettings, held_out_figures, train

KINDS: dict[str, tuple[type[TrainingSettings], Callable[[Any], Trainee]]] = {
    "model": (TrainingSettings, new_model),
    "head": (HeadSettings, new_head),
    "pard": (PardSettings, new_pard),
}
LOG_EVERY = 25


def main() -> None:
    """Read the settings, train, write files and card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="trained", required=True)
    for name, (settings, _) in KINDS.items():
        kind = kinds.add_parser(name)
        for field in fields(settings):
            kind.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
        kind.add_argument("--threads", type=int, default=1)
        kind.add_argument("--assets", type=Path, default=ASSETS, help="folder that gets the finished one")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    settings, make = KINDS[given.trained]
    trainee = make(settings(**{field.name: getattr(given, field.name) for field in fields(settings)}))
    recent: list[list[float]] = []
    for step, seconds, figures in train(trainee):
        recent.append(figures)
        if step % LOG_EVERY == 0:
            print(f"step {step} seconds {seconds:.0f}", *means(recent), flush=True)
            recent.clear()
    found = held_out_figures(trainee)
    folder = given.assets / given.name
    trainee.save(folder, seconds, found)
    print(f"{folder}: on held-out answers", *means([found]))


def means(rows: list[list[float]]) -> list[str]:
    """Of each column."""
    return [f"{sum(column) / len(column):.3f}" for column in zip(*rows, strict=True)]


if __name__ == "__main__":
    main()
