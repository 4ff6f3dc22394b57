"""The corpus: an endless seeded stream of documents, and the question suite held out of it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from tiny.document import Document
from tiny.tasks_arithmetic import make_math
from tiny.tasks_code import make_code
from tiny.tasks_dialogue import make_dialogue
from tiny.tasks_facts import make_qa
from tiny.tasks_news import make_summary
from tiny.tasks_passages import make_rag
from tiny.tasks_translation import make_translation

MAKERS: dict[str, Callable[[random.Random], Document]] = {
    "multi-turn": make_dialogue,
    "translation": make_translation,
    "summarization": make_summary,
    "qa": make_qa,
    "math_reasoning": make_math,
    "rag": make_rag,
    "code": make_code,
}
# share of documents per task, set by how hard a task is to learn and by how few tokens its answers have
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
    """All documents of a seed, from the training part of the world or from the part held out of training."""
    rng = random.Random(seed)
    tasks, weights = zip(*SHARES.items(), strict=True)
    while True:
        document = MAKERS[rng.choices(tasks, weights)[0]](rng)
        if document.held_out == held_out:
            yield document


def suite(per_task: int = 10, seed: int = SUITE_SEED) -> list[Document]:
    """The documents of the question suite: held out, without repetition, ordered by task."""
    chosen: list[Document] = []
    for offset, maker in enumerate(MAKERS.values()):
        rng = random.Random(seed + offset)
        found: dict[str, Document] = {}
        while len(found) < per_task:
            document = maker(rng)
            if document.held_out:
                found.setdefault(document.key, document)
        chosen += found.values()
    return chosen


def write_suite(path: Path, per_task: int = 10) -> int:
    """Write the question suite in Spec-Bench's format, one question per line; returns the number of questions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(
            {
                "question_id": number,
                "category": document.category,
                "turns": list(document.turns),
                "reference": list(document.answers),
            },
            ensure_ascii=False,
        )
        for number, document in enumerate(suite(per_task), start=1)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


def write_corpus(path: Path, count: int, seed: int) -> int:
    """Write the first ``count`` training documents of a seed as chat messages, one per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        for document in islice(documents(seed), count):
            row = {"category": document.category, "messages": document.messages()}
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    return count
