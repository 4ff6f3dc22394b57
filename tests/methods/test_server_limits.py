"""Servers that are at fault: each fault is one error of its row, in bounded time and memory, in one
form.
"""

from __future__ import annotations

import re
import resource
import time
from contextlib import contextmanager
from pathlib import Path

import hostile
import pytest
import stand_in

from methods.server import connection
from methods.server.acceptance import DraftReport, reconcile
from methods.server.method import ServerPeer
from specbench.commands import run as run_command
from specbench.models.facade import Target
from specbench.records.store import read_run
from specbench.types import CaseError, InputError
from tests.methods.test_server import ask as asked
from tests.methods.test_server import card, row_of, settings_of

LIMIT, WAIT_S, MOST_S, MOST_BYTES = 24, 0.4, 20.0, 300 << 20  # a silent server waits for 30 s
SERVES = {"status_500", "redirect", "missing"}  # at a path that a server need not have
SOME = ("html", "status_500", "gzip", "slow_headers", "silent")
FIRST = ("/v1/models", "/v1/completions")
OTHERS = ("/metrics", "/server_info", "/tokenize")
CELLS = [(path, mode) for path in FIRST for mode in hostile.ANY]
CELLS += [("/v1/completions", mode) for mode in hostile.STREAM] + [
    ("/metrics", mode) for mode in hostile.METRICS
]
CELLS += [
    cell if (cell := (path, mode))[1] in SOME else pytest.param(*cell, marks=pytest.mark.exhaustive)
    for path in OTHERS
    for mode in hostile.ANY
]


@contextmanager
def bound(url: str, dialect: str = "auto", **limits: float):
    """A method that is bound to a server, and closed at the end."""
    method = ServerPeer(url, dialect, **limits)
    try:
        method.check(card())
        method.bind(Target(card(), None, 64, None))
        yield method
    finally:
        method.close()


def ask(url: str, dialect: str = "auto", wait_s: float = 60.0):
    """All that a run asks of a server, with one measured request."""
    with bound(url, dialect, timeout_s=wait_s, longest_s=2 * wait_s) as method:
        return asked(method, [5, 6, 7], LIMIT)


def peak_bytes() -> int:
    """The most memory that this process had since it was last forgotten, which is done; for all its
    time elsewhere.
    """
    forget, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    try:
        lines = status.read_text().splitlines()
        forget.write_text("5")
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize(("path", "mode"), CELLS)
def test_every_answer_has_a_limit_of_time_and_memory(path: str, mode: str, monkeypatch):
    monkeypatch.setattr(connection, "START_S", WAIT_S / 2)
    card()
    peak_bytes()
    before = peak_bytes()
    with hostile.serving(path, mode) as server:
        start = time.monotonic()
        if (mode in SERVES and path in OTHERS) or mode == "histogram":
            assert len(ask(server.url).ids) == LIMIT
        else:
            kind = CaseError if path == "/v1/completions" else InputError
            with pytest.raises(kind, match=rf"{server.url}.*; expected") as caught:
                ask(server.url, wait_s=WAIT_S)
            assert len(str(caught.value)) < 1000
        assert time.monotonic() - start < MOST_S
    assert peak_bytes() - before < MOST_BYTES


def test_a_compressed_answer_within_the_limits_is_read():
    with hostile.serving("/tokenize", "packed") as server:
        assert ask(server.url).ids == stand_in.answer_of([5, 6, 7], LIMIT)


@pytest.mark.parametrize("setting", ["model", "url"])
def test_a_server_that_lists_no_model_names_the_setting(setting: str):
    page = "status_500" if setting == "model" else "missing"
    with hostile.serving("/v1/models", page) as server:
        with pytest.raises(
            InputError, match=f"^{setting}: .*/v1/models names no model .status [45].*server's name"
        ):
            ask(server.url, "vllm")
        named = ServerPeer(server.url, "vllm", model="m")
        named.check(card())  # which needs no list
        named.close()
    with hostile.serving("/v1/models", page, dialect="sglang") as server:
        assert len(ask(server.url, "sglang").ids) == LIMIT  # whose requests name no model


def change(old: str, new: str, at: int = 1):
    r"""Change an answer's events from the one of this number on. old: a pattern if it has a ``\``,
    else a text.
    """
    seen, pattern = [], re.compile(old if "\\" in old else re.escape(old))

    def change_event(text: str) -> str:
        seen.append(text)
        return pattern.sub(lambda _: new, text) if len(seen) > at else text

    return change_event


ID = r'"token_ids": \[\d+'
WRONG = [
    (
        "vllm",
        ID,
        '"token_ids": [229.7',
        "choices.0.token_ids.0 is 229.7, which",
    ),
    ("vllm", ID, '"token_ids": [true', "token_ids.0 is True"),
    (
        "vllm",
        ID,
        '"token_ids": [-1',
        "token_ids.0 is -1, which should be",
    ),
    (
        "vllm",
        ID,
        '"token_ids": [999999',
        "999999; expected an id below 2048.*model.tokenizer",
    ),
    ("vllm", '"token_ids"', '"ids": [], "text": "x", "token"', "an answer of ids and of text"),
    (
        "vllm",
        '"finish_reason": "length"',
        '"finish_reason": "abort"',
        "is 'abort', which should be 'stop', 'length'",
    ),
    ("vllm", '{"choices": [', '{"choices": [{}, ', "choices .* at most 1 item"),
    ("vllm", '{"choices"', '[7] {"choices"', "not JSON"),
    ("vllm", '"num_spec_steps": ', '"num_spec_steps": -', "num_spec_steps is -"),
    (
        "vllm",
        '"acceptance_histogram": [',
        '"acceptance_histogram": [' + "1," * 5000,
        "histogram .* at most 4097 items",
    ),
    (
        "tensorrt_llm",
        '"avg_decoded_tokens_per_iter": ',
        '"avg_decoded_tokens_per_iter": -',
        "per_iter is -",
    ),
    ("sglang", '"length"', '"why"', "meta_info.finish_reason.type is 'why'"),
    (
        "sglang",
        '{"type": "length"}',
        '{"type": "abort", "message": "no memory"}',
        "aborted the request: no memory",
    ),
    (
        "sglang",
        '"spec_verify_ct": ',
        '"spec_verify_ct": true, "x": ',
        "meta_info.spec_verify_ct is True",
    ),
    ("lmdeploy", '"output_ids": [', '"output_ids": "x", "x": [', "output_ids is 'x'"),
    ("llama_cpp", r'"tokens": \[\d+', '"tokens": [true', "tokens.0 is True"),
    ("llama_cpp", '"stop_type": "limit"', '"stop_type": "why"', "stop_type is 'why'"),
    ("llama_cpp", '"draft_n": ', '"draft_n": -', "timings.draft_n is -"),
    ("openai", '"text": "', '"text": 7, "x": "', "choices.0.text is 7"),
    (
        "openai",
        '"choices"',
        '"token_ids": [5], "error": {"message": "too busy"}, "choices"',
        "error: .*too busy",
    ),
]


@pytest.mark.parametrize(("dialect", "old", "new", "message"), WRONG)
def test_a_field_of_another_type_or_out_of_bounds_is_an_error_that_names_it(
    dialect, old, new, message
):
    with (
        stand_in.serving(dialect, counts=dialect != "tensorrt_llm") as server,
        bound(server.url, timeout_s=5.0) as method,
    ):
        server.change = change(old, new)
        with pytest.raises(CaseError, match=message):
            asked(method, [5, 6], LIMIT)


@pytest.mark.parametrize(
    "dialect", ["vllm", "sglang", "llama_cpp", "tensorrt_llm", "lmdeploy", "openai"]
)
def test_other_fields_are_ignored_and_those_that_are_read_may_be_null(dialect: str):
    spelled = card().tokenizer("".join(f" w{place}" for place in range(LIMIT))).input_ids
    more = (
        '{"usage": {"x": [1.5, null]}, "error": null, "metrics": null, "timings": null,'
        ' "stop_type": null, '
    )
    with stand_in.serving(dialect, per_request=False, counts=False) as server:
        server.change = lambda event: more + event[1:]
        assert len(ask(server.url).ids) == (
            min(len(spelled), LIMIT) if dialect == "openai" else LIMIT
        )


POSITION = b'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%s"} 1' % (b"9" * 5000)


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("/v1/models", b'{"data": [{"id": 7}]}', "data.0.id is 7"),
        ("/v1/models", b"[" * 5000, "/v1/models: not JSON"),
        ("/metrics", b"vllm:spec_decode_num_drafts_total NaN", "total NaN; expected a count"),
        ("/metrics", b"vllm:spec_decode_num_drafts_total -1", "total -1; expected a count"),
        ("/metrics", b"vllm:spec_decode_num_drafts_total 1e+-", "total 1e.-; expected a count"),
        ("/metrics", POSITION, "of a position below 4096"),
    ],
)
def test_a_page_with_a_wrong_figure_is_refused_before_the_run(path: str, text: bytes, message: str):
    with hostile.serving(path, text) as server, pytest.raises(InputError, match=message):
        ask(server.url)


@pytest.mark.parametrize("text", [b"<html>", b"[3]", b'{"tokens": [1.5]}', b""])
def test_another_page_at_the_path_of_the_tokenizer_is_a_warning(text: bytes):
    with hostile.serving("/tokenize", text) as server, bound(server.url) as method:
        assert any("/tokenize: " in each for each in method.warnings)


def test_a_key_that_no_header_may_have_is_refused(monkeypatch):
    monkeypatch.setenv(connection.KEY, "one\ntwo")
    with (
        stand_in.serving() as server,
        pytest.raises(InputError, match=f"{connection.KEY}: has characters"),
    ):
        ask(server.url)


def test_steps_are_bounded_by_the_tokens_whatever_is_reported():
    endless = DraftReport("request", 0, drafts=2, drafted=0, histogram=(10**12,))
    assert len(reconcile(9, None, [endless]).steps) == 9
    many = DraftReport("request", 0, drafts=2, drafted=0, by_step=((3, 4),) * 300_000)
    assert [size for size, _ in reconcile(9, None, [many]).steps] == [4, 4, 1]


def test_one_servers_fault_ends_its_own_row_only(tmp_path):
    """The good row's records stay valid, and its comparison with the baseline too."""
    with (
        stand_in.serving("vllm", speculates=False) as plain,
        stand_in.serving("vllm") as good,
        hostile.serving("/v1/completions", "html") as bad,
    ):
        run_command.main(settings_of(tmp_path, plain, good, row_of("bad", bad), "suite.ids=[1,2]"))
    found = [(record.method, record.status) for record in read_run(tmp_path).records]
    assert sorted(set(found)) == [("bad", "error"), ("server", "ok"), ("vanilla", "ok")]
    assert all(
        record.lossless.equal for record in read_run(tmp_path).records if record.method == "server"
    )


def test_a_baseline_that_gives_no_scores_leaves_other_rows_as_they_are():
    with stand_in.serving() as server, bound(server.url) as method:
        server.fault = "error_500"
        assert method.gap([5, 6], 40, 41) is None
