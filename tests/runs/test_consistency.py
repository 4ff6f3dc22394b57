"""The records of a run are checked when they are read by the rules by which they were written."""

from __future__ import annotations

import json

import pytest
import stand_in

from builders.runs import execute_job
from specbench.records.store import read_run

ANSWER = "Bruena holds its fair in April. Guests from all over Harnland come to buy rice."  # and EOS: 26 tokens
TOKENS = 26


@pytest.mark.parametrize(("text", "divergence"), [(ANSWER, None), (ANSWER.replace("rice", "bread"), [0, 22])])
def test_a_run_against_a_server_of_texts_can_be_reported(tmp_path, monkeypatch, text, divergence):
    """Vanilla emits EOS exactly at the last token: the server's answer is cut before it, and its text is the same."""

    def say(handler, *_):
        yield json.dumps({"choices": [{"text": text, "finish_reason": "length"}]})
        yield "[DONE]"

    monkeypatch.setattr(stand_in.Handler, "_events", say)
    with stand_in.serving("openai", counts=False) as server:
        settings = ["model=tiny", "method=[server]", f"method.server.url={server.url}", "suite.ids=[31]"]
        execute_job(tmp_path, *settings, "measure=quick", f"decode.max_new_tokens={TOKENS}", "model.threads=1")
    found = {record.method: record for record in read_run(tmp_path).records}
    assert (len(found["vanilla"].turns[0].ids), found["vanilla"].turns[0].finish) == (TOKENS, "eos")
    verdict = found["server"].lossless
    assert (verdict.equal, verdict.divergence) == (divergence is None, divergence)
