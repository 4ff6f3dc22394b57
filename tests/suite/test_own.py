"""Prompts of one's own: every form of a file gives the same cases, and one message names all that
is wrong.
"""

import csv
import json
import re
import time

import pytest

from builders.records import write_json_lines
from builders.runs import execute_job, job_for
from builders.suites import suite_with, write_parquet
from specbench.names import suite_name
from specbench.types import InputError

USER = {"role": "user", "content": "Who?"}
WHO = [("Who?",), ("What, then?",)]


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(
            file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ","
        )
        writer.writeheader()
        writer.writerows(rows)


WRITERS = {
    "p.csv": write_csv,
    "p.tsv": write_csv,
    "p.parquet": write_parquet,
    "p.jsonl": write_json_lines,
    "p.json": lambda path, rows: path.write_text(json.dumps(rows), encoding="utf-8"),
}


def own(folder):
    """The settings of a suite of ``p.jsonl`` in a folder."""
    return "suite=file", f"suite.path={folder / 'p.jsonl'}"


def read(path, **options):
    return suite_with("own", path=path, format="own", **options)


def test_files_of_one_stem_are_suites_of_several_names():
    assert len({suite_name(f"data/{name}") for name in WRITERS}) == len(WRITERS)
    assert [
        suite_name(name) for name in ("data/p.jsonl", "p.v2.jsonl", "p.jsonl.gz", "folder", "")
    ] == [
        "p.jsonl",
        "p.v2.jsonl",
        "p.jsonl.gz",
        "folder",
        "suite",
    ]


@pytest.mark.parametrize("name", WRITERS)
def test_every_file_gives_the_same_cases(tmp_path, name):
    rows = [{"prompt": "Who?"}, {"prompt": "What, then?"}]
    WRITERS[name](tmp_path / name, rows)
    cases = read(tmp_path / name).cases
    assert [(case.id, case.category, case.turns) for case in cases] == [
        ("p-0", "prompts", WHO[0]),
        ("p-1", "prompts", WHO[1]),
    ]
    WRITERS[name](
        tmp_path / name, [{"id": 7, "category": "qa", "question": "Who?", "answer": "She."}]
    )
    (case,) = read(tmp_path / name).cases
    assert (case.id, case.category, case.turns, case.references) == ("7", "qa", WHO[0], ("She.",))


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"messages": [USER, {"role": "assistant", "content": "She."}, USER]}, ("Who?", "Who?")),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]},
            ("Who?",),
        ),
        ({"turns": ["Who?", "Why?"], "question_id": 3, "category": "writing"}, ("Who?", "Why?")),
    ],
)
def test_conversations_are_their_users_messages(tmp_path, row, turns):
    write_json_lines(tmp_path / "p.jsonl", [row])
    (case,) = read(tmp_path / "p.jsonl").cases
    assert case.turns == turns


def test_a_folder_of_foreign_files_is_read_without_settings(tmp_path):
    """Three layouts that circulate: Alpaca's, a conversation with a reference, a table in which a
    category is empty.
    """
    write_json_lines(
        tmp_path / "chat.jsonl", [{"messages": [USER], "category": "math", "answer": "42"}]
    )
    write_csv(tmp_path / "sheet.csv", [{"id": "s", "question": "Who?", "category": ""}])
    alpaca = [
        {"instruction": "Translate.", "input": "Guten Tag", "output": "Good day"},
        {"instruction": "Sing."},
    ]
    write_parquet(tmp_path / "z.parquet", alpaca)
    (tmp_path / "README.md").write_text("no prompts")
    found = [(case.id, case.category, case.turns, case.references) for case in read(tmp_path).cases]
    assert found == [
        ("chat-0", "math", WHO[0], ("42",)),  # one turn: not MT-Bench's
        ("s", "prompts", WHO[0], ()),
        ("z-0", "prompts", ("Translate.\n\nGuten Tag",), ()),
        ("z-1", "prompts", ("Sing.",), ()),
    ]
    write_json_lines(
        tmp_path / "mt.jsonl", [{"question_id": 81, "category": "math", "turns": ["a", "b"]}]
    )
    assert read(tmp_path / "mt.jsonl").cases[0].category == "multi-turn"


def test_fields_map_other_names(tmp_path):
    write_csv(tmp_path / "p.csv", [{"key": "a", "ask": "Who?", "topic": "x"}])
    (case,) = read(
        tmp_path / "p.csv", fields={"prompt": "ask", "id": "key", "category": "topic"}
    ).cases
    assert (case.id, case.turns, case.category) == ("a", WHO[0], "x")
    with pytest.raises(InputError, match=r"no nope, which suite\.fields names"):
        read(tmp_path / "p.csv", fields={"prompt": "nope"})
    with pytest.raises(InputError, match="is for prompts of your own"):
        suite_with("mini", fields={"prompt": "ask"})


def test_a_frame_names_columns_of_any_words(tmp_path):
    """A name with blanks, a dash, a bracket or a dot, as tables of others have them; braces around
    none are text.
    """
    row = {
        "Problem text": "Half of 1?",
        "in-put": "a",
        "x (y)": "b",
        "meta.k": "c",
        "meta": {"k": "d", "z w": "e"},
    }
    write_json_lines(tmp_path / "p.jsonl", [row])
    frame = r"{Problem text} {in-put}{x (y)}{meta.k}{meta.z w} \boxed{} {{meta.k}}"
    assert read(tmp_path / "p.jsonl", frame=frame).cases[0].turns == (
        r"Half of 1? abce \boxed{} {c}",
    )


def test_all_that_is_wrong_is_in_one_message(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"id": 1, "prompt": "Who?"}\n' * 2 + '{\n{"prompt": " "}\n7\n')
    with pytest.raises(InputError) as caught:
        read(path)
    head, *lines = str(caught.value).splitlines()
    assert head.startswith(f"Suite file {path}: 4 rows")
    shown = (
        "line 2: .*id 1 is on line 1",
        "line 3: .*not JSON",
        "line 4: .*blank",
        "line 5: .*got a number",
    )
    assert all(re.search(*pair) for pair in zip(shown, lines, strict=True))


SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("row", "fields", "system"),
    [
        ({"messages": [SYSTEM, USER]}, {}, "Be brief."),
        ({"system": "Be brief.", "prompt": "Who?"}, {}, "Be brief."),
        (
            {"rules": "Be brief.", "system": "linux", "prompt": "Who?"},
            {"system": "rules"},
            "Be brief.",
        ),
        ({"system": "", "prompt": "Who?"}, {}, None),
    ],
)
def test_a_row_has_its_system_message(tmp_path, row, fields, system):
    write_json_lines(tmp_path / "p.jsonl", [row])
    suite = read(tmp_path / "p.jsonl", fields=fields)
    assert (suite.cases[0].turns, suite.cases[0].system, suite.warnings) == (WHO[0], system, ())


def test_a_run_gives_the_model_each_rows_system_message(tmp_path):
    write_json_lines(tmp_path / "p.jsonl", [{"messages": [SYSTEM, USER]}, {"prompt": "Who?"}])
    settings = ("measure=quick", "method=[pld]", "decode.max_new_tokens=4", "model.system=Be kind.")
    records = execute_job(tmp_path / "run", *own(tmp_path), *settings)
    tokenizer = job_for("method=[pld]").source.card.tokenizer
    texts = {
        record.case: tokenizer.decode(record.turns[0].prompt_ids)
        for record in records
        if record.method == "vanilla"
    }
    assert ["Be brief." in texts["p-0"], "Be kind." in texts["p-0"]] == [True, False]
    assert "Be kind." in texts["p-1"]


SILENT = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"
)
REFUSING = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{%"
    " endif %}{% endfor %}a"
)


@pytest.mark.parametrize(
    ("template", "shown"),
    [(SILENT, "does not write system messages"), (REFUSING, "no system")],
    ids=["silent", "refusing"],
)
def test_a_template_without_system_messages_ends_before_the_run(tmp_path, template, shown):
    (tmp_path / "t.jinja").write_text(template)
    write_json_lines(
        tmp_path / "p.jsonl", [{"prompt": "Who?"}, {"id": "b", "messages": [SYSTEM, USER]}]
    )
    settings = (f"model.template={tmp_path / 't.jinja'}", "method=[pld]")
    with pytest.raises(InputError, match=f"p.jsonl, question b: .*{shown}"):
        job_for(*own(tmp_path), *settings)
    with pytest.raises(InputError, match=f"model.system=Be kind.: .*{shown}"):
        job_for(*settings, "model.system=Be kind.")


def test_a_question_beyond_any_context_is_refused_before_it_is_tokenized(tmp_path):
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "word " * 12_000_000}))
    start = time.perf_counter()
    with pytest.raises(
        InputError, match=r"question p-0: has 60000000 characters; expected at most 524288"
    ):
        job_for(*own(tmp_path), "method=[pld]")
    assert time.perf_counter() - start < 20


def test_a_folder_is_its_files_or_its_test_split(tmp_path):
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        write_json_lines(tmp_path / split / "rows.jsonl", [{"prompt": split}])
    assert [case.turns for case in read(tmp_path).cases] == [("test",)]
    dev = (tmp_path / "test").rename(tmp_path / "dev")
    with pytest.raises(InputError, match="has the splits dev, train: name one"):
        read(tmp_path)
    for name in ("more.csv", "rows.csv"):
        write_csv(dev / name, [{"prompt": "Who?"}])
    assert {case.id for case in read(dev).cases} == {"rows.csv-0", "rows.jsonl-0", "more-0"}
    write_json_lines(dev / "rows.jsonl", [{"id": "more-0", "prompt": "Why?"}])
    with pytest.raises(
        InputError, match=r"rows\.jsonl, line 1: id more-0 is on .*more\.csv, line 2"
    ):
        read(dev)


@pytest.mark.parametrize("name", ["p.parquet", "p.arrow", "p.json"])
def test_a_file_that_is_something_else_is_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"[nothing")
    with pytest.raises(InputError, match=rf"{name}: (is )?not"):
        read(tmp_path / name)


def test_a_csv_may_have_a_long_prompt_and_a_byte_order_mark(tmp_path):
    """Python's reader takes 131,072 characters of a field by default: fewer than 32k tokens."""
    path, long = tmp_path / "p.csv", "long, " * 50_000
    # blank columns, as of a sheet
    path.write_text(f'\ufeffprompt,note,,\n"{long}",a,,\nWho?,,,,,\n', encoding="utf-8")
    usual = csv.field_size_limit()
    assert [case.turns for case in read(path).cases] == [(long,), WHO[0]]
    assert csv.field_size_limit() == usual


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("prompt,prompt\nWho?,Why?\n", "line 1: has the column prompt twice"),
        ('prompt\n"Who?\nWhy?\n', "line 1: is not csv"),
        (
            b"\xef\xbb\xbfprompt\nWho?\nA caf\xe9.\n",
            r"line 3: not UTF-8 \(byte 5 of the line is 0xe9",
        ),
        (b"caf\xe9", r"p.csv: not UTF-8 \(byte 3 of the line is 0xe9"),
    ],
)
def test_a_csv_whose_texts_would_be_cut_or_lost_is_refused(tmp_path, text, shown):
    path = tmp_path / "p.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=shown):
        read(path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('[{"prompt": "a \\ud800"}]', "not JSON"),
        ('[{"prompt": "a", "prompt": "b"}]', "has 'prompt' twice"),
        ("[" * 9_000, "not JSON"),
    ],
)
def test_a_list_has_the_limits_of_lines(tmp_path, text, shown):
    path = tmp_path / "p.json"
    path.write_bytes(text.encode())
    with pytest.raises(InputError, match=shown):
        read(path)
    path.write_bytes(b'\xef\xbb\xbf[\n{"prompt": "Who?"}\n]')
    assert read(path).cases[0].turns == WHO[0]


def test_a_table_with_nulls_and_other_types(tmp_path):
    """A null is what the row does not have; bytes are named as what they are."""
    rows = [
        {"id": None, "prompt": "Who?", "category": None, "answer": float("nan")},
        {"id": 7, "prompt": "Why?", "category": "qa", "answer": None},
    ]
    path = tmp_path / "p.parquet"
    write_parquet(path, rows)
    found = [(case.id, case.category, case.references) for case in read(path).cases]
    assert found == [("p-0", "prompts", ()), ("7", "qa", ())]
    write_parquet(path, [{"prompt": b"Who?"}])
    with pytest.raises(InputError, match="row 0: prompt is a bytes"):
        read(path)
