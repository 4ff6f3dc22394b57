"""The check of the bundled models: do they stop, do they answer rightly, and is there something to speculate on?

Every question of the suite is asked greedily in single precision, as a real conversation in which the model's own
answers are fed back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tiny.replay import accepted_lengths

MAX_NEW_TOKENS = 256
LOOP_WINDOW = 48
LOOP_PERIOD = 16
# mean accepted tokens of prompt lookup on Vicuna-7B, for the order of magnitude
VICUNA_MAT = {
    "multi-turn": 1.70,
    "translation": 1.10,
    "summarization": 2.73,
    "qa": 1.44,
    "math_reasoning": 1.73,
    "rag": 1.72,
}
_COLUMNS = (
    "task",
    "answers",
    "prompt tokens",
    "answer tokens",
    "ended",
    "looped",
    "exact",
    "PLD MAT",
    "PLD MAT, Vicuna-7B",
    "draft agrees",
)


@dataclass(frozen=True)
class JudgedAnswer:
    """One answer of the model.

    right: equal to the reference, None without one. agreed: how many tokens the draft model would have chosen.
    """

    category: str
    prompt: list[int]
    tokens: list[int]
    ended: bool
    right: bool | None
    agreed: int

    @property
    def looped(self) -> bool:
        """True if the answer ran to the limit in a short cycle."""
        return not self.ended and is_periodic(self.tokens[-LOOP_WINDOW:])


@dataclass(frozen=True)
class CategoryFigures:
    """Figures of one category, or of all."""

    name: str
    answers: int
    prompt_tokens: float
    answer_tokens: float
    ended: float
    looped: float
    right: float | None
    mat: float
    agreement: float


def is_periodic(tokens: Sequence[int], longest: int = LOOP_PERIOD) -> bool:
    """True if the tokens repeat with some period of at most ``longest``."""
    return len(tokens) >= LOOP_WINDOW and any(
        all(tokens[place] == tokens[place - period] for place in range(period, len(tokens)))
        for period in range(1, longest + 1)
    )


class Checker:
    """Decodes answers with the target model, and counts the tokens that the draft model would have chosen."""

    def __init__(self, tiny: Path, draft: Path | None):
        self.tokenizer: Any = AutoTokenizer.from_pretrained(tiny)
        self.tiny = _load(tiny)
        self.draft = _load(draft) if draft else None

    @torch.inference_mode()
    def generate(self, prompt: list[int]) -> list[int]:
        """Greedy continuation, with the end token if there is one."""
        ids = torch.tensor([prompt])
        out = self.tiny.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MAX_NEW_TOKENS
        )
        return out[0, len(prompt) :].tolist()

    @torch.inference_mode()
    def agreed(self, prompt: list[int], answer: list[int]) -> int:
        """Tokens of the answer that the draft model would have chosen, given those before them."""
        if self.draft is None:
            return 0
        logits = self.draft(torch.tensor([prompt + answer])).logits[0]
        guesses = logits[len(prompt) - 1 : -1].argmax(dim=-1)
        return int((guesses == torch.tensor(answer)).sum())

    def ask(self, question: dict) -> list[JudgedAnswer]:
        """The answers to all turns of a question, each given with the model's own answers before it."""
        messages, answers = [], []
        references = question.get("reference") or [None] * len(question["turns"])
        for turn, reference in zip(question["turns"], references, strict=True):
            messages.append({"role": "user", "content": turn})
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            prompt = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            tokens = self.generate(prompt)
            reply = self.tokenizer.decode(tokens, skip_special_tokens=True)
            messages.append({"role": "assistant", "content": reply})
            right = None if reference is None else reply == reference
            ended = tokens[-1] == self.tokenizer.eos_token_id
            answers.append(
                JudgedAnswer(question["category"], prompt, tokens, ended, right, self.agreed(prompt, tokens))
            )
        return answers


def _load(path: Path) -> Any:
    """A model in single precision, ready to answer."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def read_suite(path: Path) -> list[dict]:
    """The questions of a suite file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _row(name: str, answers: Sequence[JudgedAnswer]) -> CategoryFigures:
    """The figures of a group of answers."""
    count, tokens = len(answers), sum(len(answer.tokens) for answer in answers)
    judged = [answer.right for answer in answers if answer.right is not None]
    lengths = [length for answer in answers for length in accepted_lengths(answer.prompt, answer.tokens)]
    return CategoryFigures(
        name,
        count,
        sum(len(answer.prompt) for answer in answers) / count,
        tokens / count,
        sum(answer.ended for answer in answers) / count,
        sum(answer.looped for answer in answers) / count,
        sum(judged) / len(judged) if judged else None,
        sum(lengths) / len(lengths) if lengths else float("nan"),
        sum(answer.agreed for answer in answers) / tokens,
    )


def rows(answers: Sequence[JudgedAnswer]) -> list[CategoryFigures]:
    """The figures per category, in the order of appearance, and over all."""
    names = list(dict.fromkeys(answer.category for answer in answers))
    groups = [_row(name, [answer for answer in answers if answer.category == name]) for name in names]
    return [*groups, _row("all", answers)]


def table(figures: Sequence[CategoryFigures], with_draft: bool) -> str:
    """The figures as a markdown table."""
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for row in figures:
        exact = "-" if row.right is None else f"{row.right:.0%}"
        real = f"{VICUNA_MAT[row.name]:.2f}" if row.name in VICUNA_MAT else "-"
        agrees = f"{row.agreement:.1%}" if with_draft else "-"
        lines.append(
            f"| {row.name} | {row.answers} | {row.prompt_tokens:.0f} | {row.answer_tokens:.0f} | {row.ended:.0%} "
            f"| {row.looped:.0%} | {exact} | {row.mat:.2f} | {real} | {agrees} |"
        )
    return "\n".join(lines)
