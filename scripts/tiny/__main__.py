"""Write the bundled suite, corpus or tokenizer, or train a bundled model or head.

    python -m scripts.tiny suite
    python -m scripts.tiny corpus --out corpus.jsonl --count 1000 --seed 2
    python -m scripts.tiny tokenizer --out FOLDER
    python -m scripts.tiny tiny_eagle3 --out FOLDER

Without --out the result replaces the bundled files, and the corpus is ``corpus.jsonl`` here. The
README of a result is written by hand, from the figures that the training prints. Set
``OMP_WAIT_POLICY=PASSIVE`` on a machine with other work; otherwise waiting threads keep the other
cores busy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts.tiny.blocks import BlockSettings, new_block_head
from scripts.tiny.corpus import write_corpus, write_suite
from scripts.tiny.heads import HeadSettings, MedusaSettings, new_head, new_medusa_heads
from scripts.tiny.train import (
    ASSETS,
    HeadTraining,
    Trainee,
    TrainingSettings,
    held_out_figures,
    means,
    new_model,
    new_pard,
    save_tokenizer,
    train,
    train_tokenizer,  # fmt: skip
)

SHAPES = {
    "tiny": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 5,
    "num_attention_heads": 8,
             "num_key_value_heads": 4},
    "tiny_draft": {"hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 2,
    "num_attention_heads": 4,
                   "num_key_value_heads": 2},
}  # fmt: skip
TRAINED: dict[str, tuple[Callable[[Any], Trainee], TrainingSettings]] = {
    **{name: (partial(new_model, shape), TrainingSettings()) for name, shape in SHAPES.items()},
    "tiny_eagle": (new_head, HeadSettings(kind="eagle")),
    "tiny_mtp": (new_head, HeadSettings(kind="mtp", steps=900)),
    "tiny_eagle3": (new_head, HeadSettings(kind="eagle3", intermediate=160, steps=1400)),
    "tiny_p_eagle": (new_head,
    HeadSettings(kind="p_eagle", intermediate=160, steps=700, rows=1, passes=7)),
    "tiny_dflash": (new_block_head, BlockSettings()),
    "tiny_medusa": (new_medusa_heads, MedusaSettings()),
    "tiny_pard": (
        new_pard,
        HeadTraining(steps=1500, decay=0.7, matrix_rate=0.01, rate=0.002, seed=21),
    ),
}  # fmt: skip
LOG_EVERY = 25


def main() -> None:
    """Read the options, and write or train."""
    verbatim = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m scripts.tiny", description=__doc__, formatter_class=verbatim
    )
    parser.add_argument("what", choices=("suite", "corpus", "tokenizer", *TRAINED))
    parser.add_argument("--out", type=Path, help="file or folder of the result")
    parser.add_argument("--count", type=int, default=10_000, help="conversations of the corpus")
    parser.add_argument("--seed", type=int, default=1, help="of the corpus")
    parser.add_argument("--steps", type=int, help="of the training, to try it out")
    given = parser.parse_args()
    if given.what == "suite":
        path = given.out or ASSETS / "mini" / "question.jsonl"
        print(f"{write_suite(path)} questions in {path}")
    elif given.what == "corpus":
        path = given.out or Path("corpus.jsonl")
        print(f"{write_corpus(path, given.count, given.seed)} conversations in {path}")
    elif given.what == "tokenizer":
        save_tokenizer(train_tokenizer(), given.out or ASSETS / "tiny")
    else:
        torch.set_num_threads(1)
        make, settings = TRAINED[given.what]
        settings = replace(settings, steps=given.steps or settings.steps)
        train_and_save(make(settings), given.out or ASSETS / given.what)


def train_and_save(trainee: Trainee, folder: Path) -> None:
    """Train, print the progress, write the files, and print the figures that the README of the
    result states.
    """
    recent: list[list[float]] = []
    seconds = 0.0
    for step, seconds, figures in train(trainee):
        recent.append(figures)
        if step % LOG_EVERY == 0:
            print(
                f"step {step} seconds {seconds:.0f}",
                *(f"{mean:.3f}" for mean in means(recent)),
                flush=True,
            )
            recent.clear()
    found, settings = held_out_figures(trainee), trainee.settings
    parameters = sum(weight.numel() for weight in trainee.module.parameters())
    trainee.save(folder)
    print(settings)
    print(
        f"{parameters:,} parameters, {settings.steps * settings.rows * settings.length:,} tokens,"
        f" {seconds:.0f} s"
    )
    print("on held-out answers, loss or shares by depth:", *(f"{figure:.4f}" for figure in found))


if __name__ == "__main__":
    main()
