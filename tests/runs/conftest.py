"""What several files of tests of runs replay."""

from __future__ import annotations

from pathlib import Path

from builders.records import write_chat

PHRASES = (
    "the red boat lies in the old harbour and waits",
    "seven grey geese fly north over the wide fields",
)


def write_phrases(folder: Path, alike: int = 1, phrases: tuple[str, str] = PHRASES) -> Path:
    """A chat log of 20 answers that repeat what was asked, so that long copies are right, and then
    wander off. alike: answers that follow each other with the same phrase.
    """
    answers = [f"{phrases[number // alike % 2]} {number}. " for number in range(20)]
    pairs = ((2 * each, f"{each}What now? {each}") for each in answers)
    return write_chat(folder / "log.jsonl", pairs)
