"""Train the bundled draft model to draft in parallel (PARD) on the bundled world, and write it as a folder of its own.

python scripts/train_pard.py
specbench method=[pard,speculative_sampling] measure=quick
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny.pard_training import PardSettings, held_out_shares, save_pard, train_pard

ASSETS = Path(__file__).resolve().parent.parent / "specbench" / "assets"
LOG_EVERY = 25


def main() -> None:
    """Read the settings, train, write model, tokenizer and card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(PardSettings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    parser.add_argument("--draft", type=Path, default=ASSETS / "tiny_draft")
    parser.add_argument("--assets", type=Path, default=ASSETS, help="folder that gets the finished model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = PardSettings(**{field.name: getattr(given, field.name) for field in fields(PardSettings)})
    model = AutoModelForCausalLM.from_pretrained(given.draft, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(given.draft)
    for step, seconds, right in train_pard(model, tokenizer, settings):
        if step % LOG_EVERY == 0:
            print(f"step {step} seconds {seconds:.0f} right", *(f"{share:.3f}" for share in right), flush=True)
    shares = held_out_shares(model, tokenizer, settings)
    folder = given.assets / settings.name
    save_pard(model, tokenizer, folder, settings, seconds, shares)
    print(f"{folder}: right at each place on held-out answers", *(f"{share:.3f}" for share in shares))


if __name__ == "__main__":
    main()
