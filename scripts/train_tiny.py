"""Train one of the bundled models, resuming from its checkpoint if there is one.

A run that takes too long can be stopped and started again with fewer steps: the decay then begins earlier. On a
machine that is shared with other work set ``OMP_WAIT_POLICY=PASSIVE``, or waiting threads burn the other cores.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import torch
from transformers import AutoTokenizer

from tiny.tokenizer import save_tokenizer, train_tokenizer
from tiny.train import Training, TrainingSettings

ASSETS = Path(__file__).resolve().parent.parent / "specbench" / "assets"


def main() -> None:
    """Read the settings, fetch or train the tokenizer, and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(TrainingSettings):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="folder of checkpoints and tokenizer")
    parser.add_argument("--assets", type=Path, default=ASSETS, help="folder that gets the finished model")
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    folder = given.work / "tokenizer"
    if not folder.exists():
        save_tokenizer(train_tokenizer(), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = TrainingSettings(**{field.name: getattr(given, field.name) for field in fields(TrainingSettings)})
    run = Training(settings, tokenizer, given.work, given.assets / settings.name)
    run.resume()
    print(run.train(compiled=not given.no_compile))


if __name__ == "__main__":
    main()
