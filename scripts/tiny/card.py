"""The model card: what a bundled model is, how it was made, what it can do and what it is not for."""

from __future__ import annotations

import json
from pathlib import Path

CHECK_FILE = "check.md"

_CARD = """---
license: apache-2.0
library_name: transformers
tags:
- speculative-decoding
- testing
---

# {name}

{role}

## What it is for

To run the harness end to end on any machine, without a download and without an accelerator: in tests, in examples and
to try out a new method. It is **not** a basis for conclusions about decoding methods: its text is regular, its
vocabulary small, and a forward pass costs next to nothing, so ratios of wall times say nothing about real models.

## Data

All text was composed by the generators in `scripts/tiny/` from word lists of our own: an invented world with sixty
towns, an invented language, and seven tasks named after the categories of Spec-Bench. No foreign text was used; data
and weights are own work under the license of this repository. One conversation in thirty-two, chosen by the hash of its
opening turn, is held out of every corpus, and the question suite `mini` is drawn from those.

## Training

| figure | value |
|---|---|
| parameters | {parameters:,} |
| steps | {steps:,} |
| tokens (packed, prompts and answers) | {tokens:,} |
| conversations | {documents:,} |
| wall time on two CPU cores, shared with other work | {minutes:.0f} min |
| loss on held-out answers (nats per token) | {held_out_loss:.4f} |
| settings | {settings} |

Made with `scripts/train_tiny.py`; byte-level BPE of 2048 entries, chat template in `tokenizer_config.json`.
Training sequences have at most 768 tokens. The model accepts 4096, but nothing longer than 768 was trained or checked.
The mix of tasks changed between the stages, and the tokenizer was trained on the first mix; `training.json` has the
shares, in the order of `SHARES` in `scripts/tiny/corpus.py`. A run from scratch with the settings of today is thus
comparable, not identical.

The table below says what the models get right. Two-digit sums and copying from long passages fail most often; every
answer stops by itself.

{files}## Check

{check}
"""
_DATASTORE = """## Datastore

`datastore.safetensors` is REST's corpus for this model: 1000 conversations of the same world, none of them from the
held-out part that the suite `mini` is drawn from. Made with

    python scripts/make_tiny_corpus.py corpus corpus.jsonl --count 1000 --seed 2
    specbench build datastore --tokenizer bundled:tiny --field messages.content \\
        --out specbench/assets/tiny/datastore.safetensors corpus.jsonl

"""

_FILES = {"tiny": _DATASTORE}
_STAGE = "from step {from_step}: {tokens} tokens per step, Muon {matrix_rate}, AdamW {rate}"
_ROLES = {
    "tiny": "The target model of specbench's bundled pair: a small Llama that knows an invented world.",
    "tiny_draft": "The draft model of specbench's bundled pair: it shares the tokenizer of `tiny` and is far smaller.",
}


def write_card(target: Path, name: str) -> None:
    """Write ``README.md`` into the folder of a model from its record of training and its last check."""
    record = json.loads((target / "training.json").read_text(encoding="utf-8"))
    check = target / CHECK_FILE
    text = check.read_text(encoding="utf-8").strip() if check.exists() else "Not checked yet."
    settings = "; ".join(
        _STAGE.format(tokens=stage["rows"] * stage["length"], **stage) for stage in record.pop("stages")
    )
    card = _CARD.format(
        name=name,
        role=_ROLES[name],
        files=_FILES.get(name, ""),
        minutes=record["seconds"] / 60,
        check=text,
        settings=settings,
        **record,
    )
    (target / "README.md").write_text(card, encoding="utf-8")
