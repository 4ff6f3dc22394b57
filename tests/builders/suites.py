"""Rows in the schema of suites whose data is not in the repository, and the cases that they
become.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from specbench.suite import Suite, load_suite
from specbench.suite.settings import FieldsConfig, HubConfig, SuiteConfig

FILLED = {
    "question_id": "x1",
    "category": "coding",
    "sub_category": "python",
    "turns": ["Write f.", "Now g."],
}
SPEED = FILLED | {"source": "s", "src_id": "0", "difficulty": "", "multiturn": True}
HOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
MATH = {
    "problem": "Half of 1?",
    "solution": r"It is $\boxed{\frac{1}{2}}$.",
    "answer": r"\frac{1}{2}",
}
LIVE = {
    "question_content": "Add.",
    "starter_code": "def f(a, b):",
    "difficulty": "easy",
    "question_id": "abc301_a",
}
FUNCTION = {"name": "area", "parameters": {"type": "dict", "properties": {}}}
CALL = {
    "id": "simple_0",
    "question": [[{"role": "user", "content": "Area of {x}?"}]],
    "function": [FUNCTION],
}
REPORT = {
    "input": "",
    "context": "A long text.",
    "answers": ["Short."],
    "dataset": "gov_report",
    "_id": "e1",
}
TALK = {
    "task": "CM",
    "id": 7,
    "history": [{"user": "Hi.", "bot": "Hello."}, {"user": "Who?", "bot": "She."}],
}
NEEDLE = {
    "index": 3,
    "input": "Long. The number for a is: 8930103. Long. Which is it?",
    "outputs": ["8930103"],
}
RULER = (
    500,
    NEEDLE | {"length": 8177, "answer_prefix": " It is"},
    "3",
    "prompts",
    "",
    ("Long. ",),
    (["8930103"],),
)
THROUGHPUT = {f"speed_bench_throughput_{size}k": 1536 for size in (1, 2, 8, 16, 32)}
# Suite -> questions of the official file, a row, id, category, subcategory, words of the first
# turn, references.
HAND_MADE = {
    "speed_bench": (880, SPEED, "x1", "coding", "python", ("Write f.",), ()),
    **{
        name: (count, SPEED, "x1", "coding", "python", ("Write f.",), ())
        for name, count in THROUGHPUT.items()
    },
    "math_500": (
        500,
        MATH | {"subject": "Algebra", "level": 1, "unique_id": "test/algebra/1.json"},
        "test/algebra/1.json",
        *("Algebra", "Algebra", ("Half of 1?\n\n", r"in \boxed{}."), (MATH["solution"],)),
    ),
    "livecodebench": (None, LIVE, "abc301_a", "easy", "easy", ("\n\nAdd.\n\ndef f(a, b):",), ()),
    "bfcl": (
        None,
        CALL,
        "simple_0",
        "prompts",
        "",
        (json.dumps([FUNCTION]), "Request: Area of {x}?"),
        (),
    ),
    "bfcl_multi_turn": (
        200,
        CALL,
        "simple_0",
        "prompts",
        "",
        (json.dumps([FUNCTION]), "Request: Area of {x}?"),
        (),
    ),
    "longbench_summaries": (
        800,
        REPORT,
        "e1",
        "gov_report",
        "gov_report",
        ("A long text.\n\n\nWrite",),
        ("Short.",),
    ),
    **{f"ruler_{size}k": RULER for size in (8, 32, 64, 128)},
    "mt_bench_101": (1388, TALK, "7", "CM", "CM", ("Hi.",), ()),
}


def suite_with(name: str, **settings: Any) -> Suite:
    """The suite of these settings; ``hub`` and ``fields`` may be plain values."""
    hub = HubConfig(**settings.pop("hub", None) or {})
    fields = FieldsConfig(**settings.pop("fields", None) or {})
    given = {
        key: str(value) if isinstance(value, Path) else value for key, value in settings.items()
    }
    return load_suite(SuiteConfig(name=name, hub=hub, fields=fields, **given))


def write_parquet(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write the rows as a table and return the path."""
    pyarrow.parquet.write_table(pa.Table.from_pylist(list(rows)), path)
    return path
