"""Train a head for the bundled model on the bundled world, and write it as the published heads are written.

python scripts/train_head.py
python scripts/train_head.py --kind eagle3 --name tiny_eagle3 --intermediate 160 --steps 1400
python scripts/train_head.py --kind mtp --name tiny_mtp --steps 900
python scripts/train_head.py --kind p_eagle --name tiny_p_eagle --intermediate 160 --steps 700 --rows 1 --passes 7
    specbench method=[eagle2,eagle3,p_eagle,pld] measure=quick
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny.head_training import LOG_EVERY, HeadSettings, held_out_shares, save_head, train_head

ASSETS = Path(__file__).resolve().parent.parent / "specbench" / "assets"


def main() -> None:
    """Read the settings, train, write weights, configuration and card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(HeadSettings):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    parser.add_argument("--target", type=Path, default=ASSETS / "tiny")
    parser.add_argument("--assets", type=Path, default=ASSETS, help="folder that gets the finished head")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    settings = HeadSettings(**{field.name: getattr(given, field.name) for field in fields(HeadSettings)})
    target = AutoModelForCausalLM.from_pretrained(given.target, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.target)
    recent: list[list[float]] = []
    for step, seconds, right, head in train_head(target, tokenizer, settings):  # noqa: B007
        recent.append(right)
        if step % LOG_EVERY == 0:
            means = [sum(shares) / len(shares) for shares in zip(*recent, strict=True)]
            print(f"step {step} seconds {seconds:.0f} right", *(f"{mean:.3f}" for mean in means), flush=True)
            recent.clear()
    folder = given.assets / settings.name
    shares = held_out_shares(head, target, tokenizer, settings)
    save_head(head, target, folder, settings, seconds, shares)
    print(f"{folder}: right at each depth on held-out answers", *(f"{share:.3f}" for share in shares))


if __name__ == "__main__":
    main()
