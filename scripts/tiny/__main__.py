r"""Write the bundled corpus, or train a bundled model, a head, or the draft model that drafts in parallel.

    python -m scripts.tiny corpus suite
    python -m scripts.tiny corpus corpus corpus.jsonl --count 1000 --seed 2
    python -m scripts.tiny train model --name tiny_draft
    python -m scripts.tiny train head --kind eagle3 --name tiny_eagle3 --intermediate 160 --steps 1400
    python -m scripts.tiny train head --kind mtp --name tiny_mtp --steps 900
    python -m scripts.tiny train head --kind p_eagle --name tiny_p_eagle --intermediate 160 --steps 700 --rows 1 \
        --passes 7
    python -m scripts.tiny train pard

Set ``OMP_WAIT_POLICY=PASSIVE`` on a machine with other work; otherwise waiting threads keep the other cores busy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from scripts.tiny.corpus import write_corpus, write_suite
from scripts.tiny.heads import HeadSettings, new_head
from scripts.tiny.model import PardSettings, new_model, new_pard
from scripts.tiny.train import (
    ASSETS,
    Trainee,
    TrainingSettings,
    held_out_figures,
    means,
    save_tokenizer,
    train,
    train_tokenizer,  # fmt: skip
)

TRAINED: dict[str, tuple[type[TrainingSettings], Callable[[Any], Trainee]]] = {
    "model": (TrainingSettings, new_model),
    "head": (HeadSettings, new_head),
    "pard": (PardSettings, new_pard),
}
LOG_EVERY = 25


def main() -> None:
    """Read the options, and write or train."""
    parser = argparse.ArgumentParser(
        "python -m scripts.tiny", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tasks = parser.add_subparsers(dest="task", required=True)
    trained = tasks.add_parser("train", help="a model, a head or the parallel draft model")
    kinds = trained.add_subparsers(dest="what", required=True)
    for name, (settings, _) in TRAINED.items():
        kind = kinds.add_parser(name)
        for field in fields(settings):
            kind.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
        kind.add_argument("--threads", type=int, default=1)
        kind.add_argument("--assets", type=Path, default=ASSETS, help="parent folder of the result")
    kinds = tasks.add_parser("corpus", help="suite, corpus or tokenizer").add_subparsers(dest="what", required=True)
    suite = kinds.add_parser("suite", help="the question suite, in Spec-Bench's format")
    suite.add_argument("--path", type=Path, default=ASSETS / "mini" / "question.jsonl")
    suite.add_argument("--per-task", type=int, default=10)
    corpus = kinds.add_parser("corpus", help="training conversations as chat messages, one per line")
    corpus.add_argument("path", type=Path)
    corpus.add_argument("--count", type=int, default=10_000)
    corpus.add_argument("--seed", type=int, default=1)
    kinds.add_parser("tokenizer", help="the tokenizer of the bundled models").add_argument("path", type=Path)
    given = parser.parse_args()
    if given.task == "train":
        train_and_save(given)
    elif given.what == "tokenizer":
        save_tokenizer(train_tokenizer(), given.path)
    elif given.what == "suite":
        print(f"{write_suite(given.path, given.per_task)} questions in {given.path}")
    else:
        print(f"{write_corpus(given.path, given.count, given.seed)} conversations in {given.path}")


def train_and_save(given: argparse.Namespace) -> None:
    """Train, print the progress, and write files and card."""
    torch.set_num_threads(given.threads)
    settings, make = TRAINED[given.what]
    trainee = make(settings(**{field.name: getattr(given, field.name) for field in fields(settings)}))
    recent: list[list[float]] = []
    for step, seconds, figures in train(trainee):
        recent.append(figures)
        if step % LOG_EVERY == 0:
            print(f"step {step} seconds {seconds:.0f}", *(f"{mean:.3f}" for mean in means(recent)), flush=True)
            recent.clear()
    found = held_out_figures(trainee)
    folder = given.assets / given.name
    trainee.save(folder, seconds, found)
    print(f"{folder}: on held-out answers", *(f"{figure:.3f}" for figure in found))


if __name__ == "__main__":
    main()
