"""Files that a user can get wrong: questions, traces, chat logs, answer files, records, manifests."""

from __future__ import annotations

from bad_input.case import Bad, bad

GOOD_QUESTION = '{"question_id": 1, "category": "qa", "turns": ["a"]}\n'


def question(name: str, content: str | bytes, *words: str) -> Bad:
    """Of a file of questions; the message names it."""
    file = {"question.jsonl": content}
    return bad(
        "suite=spec_bench suite.path=question.jsonl", "question.jsonl", *words, name=f"questions: {name}", files=file
    )


FILES = (
    question("empty", "", "empty"),
    question("not json", f"{GOOD_QUESTION}hello\n", "line 2"),
    question("no turns", '{"question_id": 1, "category": "qa"}\n', "turns"),
    question("doubled", GOOD_QUESTION * 2, "question_id"),
    question("category named as the whole", '{"question_id": 1, "category": "overall", "turns": ["a"]}\n', "rename it"),
    bad("suite=spec_bench", "suite.path", "SPECBENCH_DATA", name="questions: nowhere"),
    bad("", "manifest.json", name="records without their manifest", files={"run/records.jsonl": ""}),
    bad(
        "",
        "another configuration",
        name="a directory of another run",
        files={"run/manifest.json": '{"config_hash": "other"}'},
    ),
)
