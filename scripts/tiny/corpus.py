"""The bundled corpus, an endless seeded stream of documents, and the suite of questions that no
training uses.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from scripts.tiny.tasks import make_code, make_dialogue, make_math, make_qa, make_rag, make_summary
from scripts.tiny.velsh import make_translation
from scripts.tiny.world import Document

MAKERS: dict[str, Callable[[random.Random], Document]] = {
    "multi-turn": make_dialogue, "translation": make_translation, "summarization": make_summary,
    "qa": make_qa, "math_reasoning": make_math, "rag": make_rag, "code": make_code,
}  # fmt: skip
# The share of documents per task: larger for tasks that are hard to learn or have short answers.
SHARES = {
    "multi-turn": 18,
    "translation": 16,
    "summarization": 14,
    "qa": 13,
    "math_reasoning": 18,
    "rag": 13,
    "code": 8,
}
SUITE_SEED = 4_000_000


def documents(seed: int, held_out: bool = False) -> Iterator[Document]:
    """Yield documents of a seed without end: those for training, or those that no training uses."""
    rng = random.Random(seed)
    tasks, weights = zip(*SHARES.items(), strict=True)
    while True:
        document = MAKERS[rng.choices(tasks, weights)[0]](rng)
        if document.held_out == held_out:
            yield document


def suite(per_task: int = 10) -> list[Document]:
    """Return the documents of the question suite: unused in training, each once, ordered by
    task.
    """
    chosen: list[Document] = []
    for offset, maker in enumerate(MAKERS.values()):
        rng = random.Random(SUITE_SEED + offset)
        found: dict[str, Document] = {}
        while len(found) < per_task:
            document = maker(rng)
            if document.held_out:
                found.setdefault(document.key, document)
        chosen += found.values()
    return chosen


def write_suite(path: Path, per_task: int = 10) -> int:
    """Write the question suite in Spec-Bench's format, one question per line; returns the number of
    questions.
    """
    rows = [
        {
            "question_id": number,
            "category": each.category,
            "turns": each.turns,
            "reference": each.answers,
        }
        for number, each in enumerate(suite(per_task), start=1)
    ]
    return _write(path, rows)


def write_corpus(path: Path, count: int, seed: int) -> int:
    """Write the first ``count`` training documents of a seed as chat messages, one per line."""
    rows = [
        {"category": each.category, "messages": each.messages()}
        for each in islice(documents(seed), count)
    ]
    return _write(path, rows)


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return len(rows)
