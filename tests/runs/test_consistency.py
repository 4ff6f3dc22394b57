"""The records of a run are checked when they are read by the rules by which they were written."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import stand_in

from builders.records import write_json_lines
from builders.resumed import cut_records, edit_manifest, replay_of, timeless
from builders.runs import execute_job
from specbench.input import InputError
from specbench.records.store import RECORDS, read_run
from specbench.runs.execution import AT, DEATHS

# and EOS: 26 tokens
ANSWER = "Bruena holds its fair in April. Guests from all over Harnland come to buy rice."
TOKENS = 26


@pytest.mark.parametrize(
    ("text", "divergence"), [(ANSWER, None), (ANSWER.replace("rice", "bread"), [0, 22])]
)
def test_a_run_against_a_server_of_texts_can_be_reported(tmp_path, monkeypatch, text, divergence):
    """Vanilla emits EOS exactly at the last token: the server's answer is cut before it, and its
    text is the same.
    """

    def say(handler, *_):
        yield json.dumps({"choices": [{"text": text, "finish_reason": "length"}]})
        yield "[DONE]"

    monkeypatch.setattr(stand_in.Handler, "_events", say)
    with stand_in.serving("openai", counts=False) as server:
        settings = ("model=tiny", "method=[server]", f"method.server.url={server.url}")
        settings += ("suite.ids=[31]", f"decode.max_new_tokens={TOKENS}", "model.threads=1")
        execute_job(tmp_path, *settings, "measure=quick")
    found = {record.method: record for record in read_run(tmp_path).records}
    assert (len(found["vanilla"].turns[0].ids), found["vanilla"].turns[0].finish) == (TOKENS, "eos")
    verdict = found["server"].lossless
    assert (verdict.equal, verdict.divergence) == (divergence is None, divergence)


def edit_records(folder: Path, edit: Any) -> None:
    """Change the lines of a run's records, as a list of plain values."""
    lines = [json.loads(line) for line in (folder / RECORDS).read_text().splitlines()]
    edit(lines)
    write_json_lines(folder / RECORDS, lines)


def of_case(lines: list[dict[str, Any]], **entries: object) -> None:
    """Change the records of the first case."""
    first = lines[0]["case"]
    for line in lines:
        if line["case"] == first:
            line.update(entries)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda lines: of_case(lines, case="renamed"), "has case renamed, and the suite has not"),
        (
            lambda lines: lines[0]["turns"][0]["ids"].__setitem__(1, 9),
            "are not vanilla's, and both replay one answer",
        ),
        (lambda lines: lines[1]["turns"][0].update(prompt_tokens=3), "turns.0.prompt_tokens"),
        (
            lambda lines: lines[1]["turns"][0].update(prefill_s=1e9),
            "turns.0.prefill_s is 1000000000.0",
        ),
    ],
)
def test_a_run_of_other_records_is_not_resumed(tmp_path, edit, words):
    settings = (*replay_of(tmp_path, 3), "method=[pld]")
    execute_job(tmp_path / "r", *settings)
    cut_records(tmp_path / "r", 4)
    edit_records(tmp_path / "r", edit)
    before = (tmp_path / "r" / RECORDS).read_bytes()
    with pytest.raises(InputError, match=words):
        execute_job(tmp_path / "r", *settings)
    assert (tmp_path / "r" / RECORDS).read_bytes() == before


DAMAGED = {
    "empty": b"",
    "list": b"[1, 2]",
    "negative": b'{"0": -3}',
    "huge": b"9" * 5000,
    "folder": None,
    "link": "itself",
}
FINE = {(AT, "empty")}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("name", [AT, DEATHS])
def test_a_damaged_note_of_kills_is_set_aside(tmp_path, caplog, name, damage):
    settings, content = (*replay_of(tmp_path, 3), "method=[pld]"), DAMAGED[damage]
    whole = execute_job(tmp_path / "r", *settings)
    cut_records(tmp_path / "r", 4)
    note = tmp_path / "r" / name
    note.unlink(missing_ok=True)
    if content is None:
        note.mkdir()
    elif isinstance(content, str):
        note.symlink_to(name)
    else:
        note.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        found = execute_job(tmp_path / "r", *settings)
    assert [timeless(each) for each in found] == [timeless(each) for each in whole]
    aside = note.with_name(f"{name}.old1")
    assert aside.is_symlink() or aside.exists() or (name, damage) in FINE
    assert (
        any(str(note) in text and aside.name in text for text in caplog.messages)
        or (name, damage) in FINE
    )


@pytest.mark.parametrize(
    ("created", "prefill_s"), [("2126-01-01T00:00:00+00:00", 0.1), (None, 30 * 3600.0)]
)
def test_a_clock_that_was_set_leaves_a_run_readable(tmp_path, created, prefill_s):
    """The run begins after now, or took longer than its start is past."""
    execute_job(tmp_path / "r", *replay_of(tmp_path, 2), "method=[pld]")
    edit_records(tmp_path / "r", lambda lines: lines[0]["turns"][0].update(prefill_s=prefill_s))
    edit_manifest(
        tmp_path / "r", lambda manifest: manifest.update(created=created or manifest["created"])
    )
    assert len(read_run(tmp_path / "r").records) == 4
