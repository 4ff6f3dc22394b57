"""Recorded conversations with tools: every public form gives the same case, and what cannot be run
is named.
"""

import json

import pytest

from builders.records import write_json_lines
from builders.runs import execute_job, job_for
from builders.suites import suite_with
from specbench.records.store import read_manifest
from specbench.suite.messages import find_cuts
from specbench.types import InputError

TEMPLATE = (
    "{% if tools %}[tools]{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{"
    " m.content }}{% for call in m.tool_calls or [] %}[call {{ call.id }}]{{ call.function | tojson"
    " }}{% endfor %}{% endfor %}[a]"
)
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}
RESULT = {"role": "tool", "content": "a.py", "tool_call_id": "c1"}
LAST = {"role": "assistant", "content": "In a.py."}
SCHEMA = {"name": "ls", "description": "", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": SCHEMA}]


def call(arguments='{"path": "/"}', name="ls", **more):
    found = {
        "id": "c1",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
        **more,
    }
    return {"role": "assistant", "content": None, "tool_calls": [found]}


CHAT = [SYSTEM, USER, call(), RESULT, LAST]
SHARED = [
    {"from": "system", "value": "Be brief."}, {"from": "human", "value": "Where?"},
    {"from": "function_call", "value": '{"name": "ls", "arguments": {"path": "/"}}'},
    {"from": "observation", "value": "a.py"}, {"from": "gpt", "value": "In a.py."},
]  # fmt: skip
# as a table has them
FILLED = [{"tool_calls": None, "tool_call_id": None, "name": None, **each} for each in CHAT]
OLD = [
    SYSTEM, USER,
    {"role": "assistant", "content": None,
    "function_call": {"name": "ls", "arguments": {"path": "/"}}}, {"role": "function", "name": "ls",
    "content": "a.py"}, LAST,
]  # fmt: skip
FORMS = {
    "openai": {"messages": CHAT, "tools": TOOLS},
    "openhands": {"trajectory": FILLED, "tools": TOOLS},
    "text": {"messages": json.dumps(CHAT), "tools": json.dumps(TOOLS)},
    "speed bench": {"turns": FILLED, "extras": json.dumps({"tools": json.dumps(TOOLS)})},
    "share gpt": {"conversations": SHARED, "tools": json.dumps([SCHEMA])},
    "functions": {"messages": OLD, "tools": [SCHEMA]},
}


def read(path, **options):
    return suite_with("own", path=path, format="own", **options)


def case_of(path, row, **options):
    write_json_lines(path / "p.jsonl", [row])
    return read(path / "p.jsonl", **options).cases[0]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_same_case(tmp_path, name):
    case = case_of(tmp_path, FORMS[name])
    assert (case.system, case.turns, case.tools) == ("Be brief.", ("Where?", "a.py"), tuple(TOOLS))
    identifier = case.messages[1]["tool_calls"][0]["id"]
    called = {"name": "ls", "arguments": {"path": "/"}}
    assert list(case.messages) == [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": identifier, "type": "function", "function": called}],
        },
        {"role": "tool", "content": "a.py", "name": "ls", "tool_call_id": identifier},
        LAST,
    ]
    assert identifier == ("c1" if name not in ("share gpt", "functions") else "call00000")
    assert find_cuts(case.messages) == [1, 3]


def test_a_log_of_swe_agent_is_recorded_when_the_form_says_so(tmp_path):
    row = {"trajectory": [
        {"role": "system", "system_prompt": "Be brief.", "text": None},
        {"role": "user", "text": "Fix it."}, {"role": "ai", "text": "ls"},
        {"role": "user", "text": "a.py"}, {"role": "ai", "text": "submit"},
    ]}  # fmt: skip
    recorded, live = (case_of(tmp_path, row, form=form) for form in ("recorded", None))
    assert (recorded.turns, live.turns) == (("Fix it.", "a.py"),) * 2
    assert [message["role"] for message in recorded.messages] == ["user", "assistant"] * 2
    assert (recorded.system, live.messages, live.references) == ("Be brief.", (), ("submit",))


def test_calls_that_are_written_into_the_text_stay_there(tmp_path):
    written = '<tool_call>{"name": "ls", "arguments": {}}</tool_call>'
    row = {"conversations": [
        {"from": "human", "value": "Where?"}, {"from": "gpt", "value": written},
        {"from": "tool", "value": "<tool_response>\n{}\n</tool_response>"},
        {"from": "tool", "value": "b"},
    ]}  # fmt: skip
    case = case_of(tmp_path, row)
    assert [message["content"] for message in case.messages] == ["Where?", written, "{}", "b"]
    # the last one has no recorded answer
    assert (find_cuts(case.messages), case.turns) == ([1, 4], ("Where?", "b"))


BAD = {
    "no call": ([USER, LAST, RESULT], "message 3 of messages is of a tool"),
    "other id": ([USER, call(), {**RESULT, "tool_call_id": "c2"}], "tool_call_id is c2, .*: c1"),
    "not JSON": ([USER, call("{path: /}")], "tool_calls.0: arguments: not JSON"),
    "a key twice": ([USER, call('{"a": 1, "a": 2}')], "arguments: has 'a' twice"),
    "late system": ([USER, call(), RESULT, SYSTEM], "message 4 of messages is a system message"),
    "null": ([USER, call(), {**RESULT, "content": None}], "message 3 .*: content is null"),
}


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        *(({"messages": messages}, shown) for messages, shown in BAD.values()),
        ({"messages": CHAT, "tools": "{"}, "tools: not JSON"),
        ({"messages": CHAT, "tools": [5]}, "tools.0 is a number"),
    ],
    ids=[*BAD, "tools", "number as tool"],
)
def test_what_cannot_be_run_is_named_with_its_row_and_field(tmp_path, row, shown):
    write_json_lines(tmp_path / "p.jsonl", [{"messages": CHAT}, row])
    with pytest.raises(InputError, match=f"p.jsonl, line 2: .*{shown}"):
        read(tmp_path / "p.jsonl")


def settings(folder, template=TEMPLATE):
    (folder / "t.jinja").write_text(template)
    return (
        "suite=file",
        f"suite.path={folder / 'p.jsonl'}",
        f"model.template={folder / 't.jinja'}",
        "method=[pld]",
    )


def test_each_turn_has_the_recorded_messages_before_it(tmp_path):
    write_json_lines(tmp_path / "p.jsonl", [FORMS["openai"]])
    own = (*settings(tmp_path), "measure=quick", "decode.max_new_tokens=4", "model.dtype=float32")
    kept = execute_job(tmp_path / "kept", *own)
    anew = execute_job(tmp_path / "anew", *own, "engine.keep_prefix=false")
    tokenizer = job_for("method=[pld]").source.card.tokenizer
    (vanilla,) = (record for record in kept if record.method == "vanilla")
    begin = f"[tools]{json.dumps(TOOLS)}[system]Be brief.[user]Where?"
    called = json.dumps({"name": "ls", "arguments": {"path": "/"}})
    texts = [tokenizer.decode(turn.prompt_ids) for turn in vanilla.turns]
    assert texts == [f"{begin}[a]", f"{begin}[assistant][call c1]{called}[tool]a.py[a]"]
    assert [[turn.ids for turn in record.turns] for record in kept] == [
        [t.ids for t in r.turns] for r in anew
    ]
    assert all("prefix_tokens" in record.turns[1].stats for record in kept)
    assert not any("prefix_tokens" in turn.stats for record in anew for turn in record.turns)
    assert all(record.lossless.equal for record in kept)


def test_a_method_that_reads_whole_prompts_is_named_where_the_others_keep_them(tmp_path):
    write_json_lines(tmp_path / "p.jsonl", [FORMS["openai"]])
    own = (
        *settings(tmp_path)[:-1],
        "method=[pld,eagle]",
        "measure=quick",
        "decode.max_new_tokens=4",
    )
    for more, count in ((), 1), (("engine.keep_prefix=false",), 0):
        execute_job(tmp_path / f"run{count}", *own, *more)
        found = [
            text
            for text in read_manifest(tmp_path / f"run{count}").warnings
            if "reads whole prompts" in text
        ]
        assert len(found) == count
        assert all(text.startswith("eagle: ") for text in found)


@pytest.mark.parametrize(
    ("template", "row", "shown"),
    [
        (TEMPLATE.replace("[tools]{{ tools | tojson }}", ""), "openai", "schemas of tools"),
        (
            TEMPLATE.replace("{{ call.function | tojson }}", "{{ call.function.name }}"),
            "share gpt",
            "calls",
        ),
        (
            TEMPLATE.replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}"),
            "openai",
            "results",
        ),
        (
            "{% for m in messages %}{% if m.role == 'tool' %}"
            "{{ raise_exception('no tools') }}{% endif %}{{ m.content }}{% endfor %}",
            "openai",
            "and results, .*no tools",
        ),
    ],
)
def test_a_template_without_a_place_for_tools_ends_before_the_run(tmp_path, template, row, shown):
    write_json_lines(tmp_path / "p.jsonl", [FORMS[row]])
    with pytest.raises(InputError, match=f"p.jsonl, question p-0: .*template.*{shown}"):
        job_for(*settings(tmp_path, template))


@pytest.mark.parametrize(
    "written",
    [
        "{{ call.function.name + call.function.arguments }}",
        "{{ call.function.name }}{{ call.function.arguments }}",
    ],
)
def test_arguments_are_text_for_a_template_that_joins_them_to_text(tmp_path, written):
    """The second would write an object as Python does."""
    write_json_lines(tmp_path / "p.jsonl", [FORMS["openai"]])
    source = job_for(
        *settings(tmp_path, TEMPLATE.replace("{{ call.function | tojson }}", written))
    ).source
    (case,) = source.suite.cases
    text = source.card.tokenizer.decode(source.prompts.prompt(case, ["x"]))
    assert '[call c1]ls{"path": "/"}[tool]a.py[a]' in text


def test_turns_beyond_the_context_are_left_out_and_counted(tmp_path):
    long = [SYSTEM, USER, call(), {**RESULT, "content": "word " * 60_000}, LAST]
    write_json_lines(tmp_path / "p.jsonl", [{"messages": CHAT}, {"messages": long}])
    suite = job_for(*settings(tmp_path)).source.suite
    assert [len(case.turns) for case in suite.cases] == [2, 1]
    (warning,) = (each for each in suite.warnings if "left out" in each)
    assert "1 turns at the end of 1 recorded conversations" in warning
    write_json_lines(
        tmp_path / "p.jsonl", [{"messages": [{**USER, "content": "word " * 20_000}, call()]}]
    )
    with pytest.raises(InputError, match="question p-0: the prompt of its first turn is longer"):
        job_for(*settings(tmp_path))


def test_a_table_gives_nulls_for_what_another_row_has(tmp_path):
    swe_smith = {"role": "tool", "content": "a.py", "tool_call_id": None, "tool_call_ids": ["c1"]}
    asked = call({"path": "/", "cmd": None})
    case = case_of(tmp_path, {"messages": [USER, asked, swe_smith, LAST], "tools": TOOLS})
    (first,) = case.messages[1]["tool_calls"]
    assert first["function"]["arguments"] == {"path": "/"}
    assert case.messages[2]["tool_call_id"] == "c1"
