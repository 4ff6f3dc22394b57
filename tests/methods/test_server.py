"""A serving engine as a peer: each dialect's acceptance exact, each fault an error row or a
warning, one run.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import stand_in
import torch
from transformers import PreTrainedConfig

import methods.server.method as method_of_servers
from builders.records import record, turn
from builders.runs import execute_job
from methods.server.acceptance import (
    GAUGES,
    DraftReport,
    parse_counters,
    read_gauges,
    reconcile,
    report_from_counters,
)
from methods.server.connection import KEY
from methods.server.engine import LaunchedEngine
from methods.server.identity import DRAWS, LEVEL, TEXTS, TOKENS, compare_draws, read_totals
from methods.server.method import ServerPeer
from specbench.commands import run as run_command
from specbench.decode.loop import Request, decode
from specbench.measure.clock import Clock
from specbench.measure.lossless import compare_block, judge_block
from specbench.models.facade import NOWHERE, ModelCard, Target
from specbench.models.load import locate, read_tokenizer
from specbench.models.replay import ServerEngine
from specbench.records.record import TurnRecord
from specbench.records.store import read_run
from specbench.report.frames.findings import gather
from specbench.report.frames.headline import find_headlines
from specbench.screen import LOADING, forwarding
from specbench.suite.prompt import PromptBuilder
from specbench.types import Case, CaseError, InputError

PROMPT, LIMIT = [5, 6, 7, 8], 24
DIALECTS = ("vllm", "sglang", "llama_cpp", "tensorrt_llm", "lmdeploy")
TRUE = stand_in.steps_of(LIMIT - 1, True)
ACCEPTED = LIMIT - 1 - len(TRUE)


@functools.cache
def card() -> ModelCard:
    tokenizer = read_tokenizer(locate("bundled:tiny", "model.tokenizer"), "model.tokenizer")
    return ModelCard(
        "m",
        "server",
        PreTrainedConfig.from_dict({"vocab_size": 2048}),
        tokenizer,
        4096,
        frozenset({2}),
        "auto",
        "server",
    )


OPENED: list[ServerPeer] = []


@pytest.fixture(autouse=True)
def _close_all():
    yield
    while OPENED:
        OPENED.pop().close()


def opened(url: str | None = None, log: Path = NOWHERE, **options) -> ServerPeer:
    OPENED.append(method := ServerPeer(url, **options))
    method.check(card())
    method.bind(Target(card(), None, 64, None, log=log))
    return method


def ask(method: ServerPeer, prompt=PROMPT, limit: int = LIMIT):
    return decode(
        ServerEngine(card(), 64),
        method,
        Request(prompt, limit, None, 0),
        Clock(torch.device("cpu")),
    )


def settings_of(folder: Path, plain, drafting, *more: str, model="bundled:tiny") -> list[str]:
    """A run of one case in which vanilla and ``server`` ask these two servers."""
    return [
        "model=server",
        f"model.tokenizer={model}",
        f"method.vanilla.url={plain.url}",
        f"method.server.url={drafting.url}",
        "suite.ids=[1]",
        "decode.max_new_tokens=24",
        "report.plots=false",
        "measure.control=false",
        "measure.warmup=0",
        f"hydra.run.dir={folder}",
        *more,
    ]


def row_of(name: str, server) -> str:
    """A setting: one more row of a run."""
    return f"+method.{name}={{_target_: methods.server.method.ServerPeer, url: '{server.url}'}}"


def test_a_server_is_asked_from_inside_a_running_loop_as_a_notebook_has_one():
    async def cell():
        method = ServerPeer(server.url)
        method.check(card())
        method.bind(Target(card(), None, 64, None))
        answers = [ask(method).ids for _ in range(2)]
        method.close()
        return answers

    with stand_in.serving("vllm") as server:
        assert asyncio.run(cell()) == 2 * [stand_in.answer_of(PROMPT, LIMIT)]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_ids_and_steps_are_those_of_the_trace_in_each_dialect(dialect: str):
    with stand_in.serving(dialect, counts=dialect != "tensorrt_llm") as server:
        method = opened(server.url)
        out = ask(method)
        assert method._dialect.name == dialect
        assert out.ids == stand_in.answer_of(PROMPT, LIMIT)
        assert (len(out.accept), sum(out.accept)) == (len(TRUE), LIMIT - 1)
        if dialect != "llama_cpp":  # whose chunks are single tokens: totals only
            assert out.accept == TRUE
        assert sum(out.proposed) == (0 if dialect == "tensorrt_llm" else stand_in.DRAFT * len(TRUE))
        reports = "counters" if dialect == "lmdeploy" else "request"
        assert out.stats[f"{reports}_accepted"] == ACCEPTED
        assert not method.warnings or dialect == "tensorrt_llm"
        assert all(
            path != "/v1/completions" or body["prompt"] != "" for path, body, _ in server.asked
        )
        assert out.prefill_s > 0 < out.decode_s


@pytest.mark.parametrize(
    ("fault", "accounts"),
    [
        ("coalesced", {}),
        ("coalesced", {"per_request": False}),
        ("wrong_counter", {}),
        ("bonus", {"counts": False}),
    ],
)
def test_accounts_that_disagree_are_a_warning_and_the_one_that_holds_is_kept(
    fault, accounts, caplog
):
    caplog.set_level(logging.INFO, "methods")
    with stand_in.serving("vllm", fault, **accounts) as server:
        method = opened(server.url)
        out = ask(method)
        ask(method)
        assert any("disagree" in text for text in method.warnings)
        levels = [each.levelname for each in caplog.records if server.url in each.message]
        # the terminal has one, the run's log has all
        assert levels == ["WARNING"] + ["INFO"] * (len(levels) - 1)
        assert len(levels) > 1
        assert len(out.accept) == len(TRUE)
        assert sum(out.accept) == LIMIT - 1
        assert Counter(out.accept) == Counter(TRUE) or not accounts.get("per_request", True)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cut", "incomplete|without a reason"),
        ("no_stream", "application/json: .*all at once.*; expected a stream of events"),
        ("error_500", "status 500: .*CUDA out of memory"),
        ("no_finish", "without a reason"),
        ("too_many", "more than the 24 tokens"),
        ("slow", "no complete answer in 1 s"),
    ],
)
def test_a_fault_is_an_error_of_the_case_and_ends_in_time(fault: str, message: str):
    with stand_in.serving("vllm") as server:
        method = opened(server.url, timeout_s=1.0 if fault == "slow" else 60.0)
        server.fault = fault
        start = time.monotonic()
        with pytest.raises(CaseError, match=message):
            ask(method)
        assert time.monotonic() - start < 15  # a slow server waits for 20 s
        server.fault = ""
        assert ask(method).ids == stand_in.answer_of(PROMPT, LIMIT)  # the next case is not harmed


def test_plain_steps_are_tokens_and_an_answer_that_the_context_cut_says_so():
    """As seen of vLLM on a loaded machine: 1,294 chunks for 1,355 tokens."""
    with stand_in.serving("vllm", "coalesced", speculates=False, counts=False) as server:
        server.start = 1.5e9
        assert set(ask(opened(server.url)).accept) == {1}
    # As vLLM cuts one, without an error.
    with stand_in.serving("vllm") as server:
        method = opened(server.url)
        assert ask(method).finish == "length"
        server.fault = "context"
        out = ask(method)
        assert (len(out.ids), out.finish) == (LIMIT // 2, "context")


def test_what_cannot_be_measured_is_refused_before_the_run(monkeypatch):
    for url, message in (
        ("ftp://x", "expected http"),
        ("http://127.0.0.1:99999", "expected http"),
        ("http://[::1", "expected http"),
        ("http://user:secret@127.0.0.1", "a password"),
        ("http://127.0.0.1:9", "expected a server that answers"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            ServerPeer(url).check(card())
        assert "secret" not in str(caught.value)
    with stand_in.serving("vllm") as server:
        with pytest.raises(InputError, match="the server has m; expected one of them"):
            ServerPeer(server.url, model="other").check(card())
        with pytest.raises(InputError, match=r"status 404.*as it stands before /v1"):
            opened(server.url + "/v1/completions")
        with pytest.raises(InputError, match="dialect=v: expected auto, vllm"):
            ServerPeer(server.url, dialect="v").check(card())
        with pytest.raises(InputError, match="endpoint=v: expected completions or chat"):
            ServerPeer(server.url, endpoint="v")
        for given in ({}, {"url": server.url, "command": "serve {port}"}):
            with pytest.raises(InputError, match="expected one of the two"):
                ServerPeer(**given)
        monkeypatch.setenv(KEY, "hush")
        ask(opened(server.url + "/v1/"))
        assert server.asked[-1][2]["Authorization"] == "Bearer hush"


def test_an_engine_is_started_for_its_row_and_ends_with_the_run(tmp_path):
    command = [sys.executable, stand_in.__file__, "{port}"]
    rows = [
        f"method.vanilla.command={json.dumps([*command, 'plain'])}",
        f"method.server.command='{' '.join(command)}'",
    ]
    nowhere = SimpleNamespace(url="null")
    assert run_command.main(settings_of(tmp_path / "run", nowhere, nowhere, *rows)) == 0
    records = read_run(tmp_path / "run").records
    assert {record.method for record in records if record.status == "ok"} == {"vanilla", "server"}
    urls = {
        (tmp_path / "run" / "logs" / f"{name}.log").read_text().strip()
        for name in ("vanilla", "server")
    }
    assert len(urls) == 2
    noted = (tmp_path / "run" / "run.log").read_text()
    for url in urls:
        assert f"serves at {url}" in noted
        with pytest.raises(InputError, match="no connection"):
            ServerPeer(url).check(card())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("serve --port 8000", r"has no \{port\}"),
        ("serve --port '{port}", "No closing quotation"),
        ("no_such_engine --port {port}", "no_such_engine is not a program"),
        ([sys.executable, "--api-key", "hush"], "has --api-key, and the manifest would keep"),
        (
            ["env", "VLLM_API_KEY=hush", sys.executable, "{port}"],
            "has VLLM_API_KEY, and the manifest",
        ),
        ([sys.executable, "--hf_token=hush", "{port}"], "has --hf_token, and the manifest"),
        (
            [sys.executable, "-c", "print('no GPU here'); raise SystemExit(3)", "{port}"],
            "exit code 3.*\n.*no GPU here",
        ),
        ([sys.executable, "-c", "import time; time.sleep(99)", "{port}"], "not ready after 1 s"),
    ],
)
def test_an_engine_that_cannot_be_started_is_refused_with_its_output(command, message, tmp_path):
    start_s = 1.0 if "sleep" in str(command) else 60.0
    with pytest.raises(InputError, match=message) as caught:
        opened(log=tmp_path / "logs" / "a.log", command=command, start_s=start_s)
    assert "hush" not in str(caught.value)


def test_the_engine_of_a_row_takes_its_children_along_and_its_early_end_is_a_warning(tmp_path):
    words = f"[sys.executable, {stand_in.__file__!r}, sys.argv[1]]"
    children = f"import subprocess, sys; print(subprocess.Popen({words}).wait())"
    method = opened(log=tmp_path / "a.log", command=[sys.executable, "-c", children, "{port}"])
    assert ask(method).ids == stand_in.answer_of(PROMPT, LIMIT)
    assert not method.warnings
    method.close()
    with pytest.raises(InputError, match="no connection"):
        ServerPeer(method._connection.url).check(card())
    again = opened(log=tmp_path / "b.log", command=[sys.executable, stand_in.__file__, "{port}"])
    os.kill(again._engine._process.pid, signal.SIGKILL)
    again._engine._process.wait()
    assert "exit code -9" in again.warnings[-1]


def test_a_server_that_took_the_port_before_the_engine_is_not_measured(tmp_path):
    engine = LaunchedEngine([sys.executable, stand_in.__file__, "{port}"])
    with stand_in.serving(port=int(engine.url.rpartition(":")[2])) as server:
        assert server.url == engine.url
        with pytest.raises(
            InputError, match=r"another server answers at .* already; expected a free port"
        ):
            engine.start(tmp_path / "a.log", lambda: True, 60.0)
    engine.end()
    assert not (tmp_path / "a.log").exists()


def test_a_long_start_of_an_engine_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr("methods.server.engine.REPORT_S", 0.0)
    engine, shown, answers = (
        LaunchedEngine([sys.executable, stand_in.__file__, "{port}"]),
        [],
        [True, False, False],
    )
    with forwarding(shown.append, LOADING):
        engine.start(tmp_path / "a.log", answers.pop, 60.0)
    engine.end()
    assert [f"its output is {tmp_path / 'a.log'}" in text for text in shown] == [True]


def test_a_child_of_an_engine_has_time_to_end_after_its_parent(tmp_path):
    ready, cleaned = tmp_path / "ready", tmp_path / "cleaned"
    end = f"(time.sleep(0.5), pathlib.Path({str(cleaned)!r}).touch(), sys.exit())"
    child = f"""
import pathlib, signal, sys, time
signal.signal(15, lambda *_: {end})
pathlib.Path({str(ready)!r}).touch()
time.sleep(60)
"""
    parent = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"
    engine = LaunchedEngine([sys.executable, "-c", parent, child, "{port}"])
    engine.start(tmp_path / "a.log", ready.exists, 60.0)
    begin = time.monotonic()
    engine.end()
    assert cleaned.exists()
    assert time.monotonic() - begin < 50  # its child would sleep for 60 s


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_requests_follow_each_other_at_once_on_a_server_that_closes_its_connections(endpoint):
    """As llama-server does behind each streamed answer, though its headers say otherwise."""

    async def ask_in_turn(method: ServerPeer) -> None:
        for _ in range(5):
            await method._begin("a", LIMIT, {})

    with stand_in.serving("llama_cpp") as server:
        method = opened(server.url, endpoint=endpoint)
        method.run(ask_in_turn(method))


def test_servers_of_two_endpoints_are_not_compared():
    with stand_in.serving("vllm") as server:
        chat, plain = (opened(server.url, endpoint=name) for name in ("chat", "completions"))
        with pytest.raises(InputError, match="endpoint=chat: the baseline has completions"):
            chat.require_same_model(plain)


def test_a_server_that_was_started_anew_is_an_error_of_every_later_case():
    with stand_in.serving("vllm") as server:
        method = opened(server.url)
        ask(method)
        server.counts = dict.fromkeys(server.counts, 0)
        for _ in range(2):  # also when the counters have grown past those of before
            with pytest.raises(
                CaseError,
                match=(
                    r"started anew during the run .its counter vllm:spec_decode_num_drafts_total"
                    r" fell"
                ),
            ):
                ask(method)
            server.counts = dict.fromkeys(server.counts, 10**6)
        server.start = 1.5e9
        method = opened(server.url)
        ask(method)
        server.start = 1.6e9
        with pytest.raises(CaseError, match=r"its start was 1500000000\.0, now 1600000000\.0"):
            ask(method)


def test_counters_are_sums_over_labels_and_a_restart_gives_none():
    """As llama.cpp's page without speculation; an average that it calls a counter may fall."""
    page = (
        'llamacpp:prompt_tokens_total 30\nllamacpp:n_busy_slots_per_decode 2\nvllm:x_total{a="b"}'
        " 1e1\nvllm:x_total 2"
    )
    assert read_totals(page) == {"llamacpp:prompt_tokens_total": 30, "vllm:x_total": 12}
    page = """
vllm:spec_decode_num_drafts_total{e="0"} 2.0
vllm:spec_decode_num_drafts_total{e="1"} 3.0
vllm:spec_decode_num_draft_tokens_total 20
vllm:spec_decode_num_accepted_tokens_total 1e1
vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 6
vllm:spec_decode_num_drafts_created 17e8
"""
    found = parse_counters(page)
    assert report_from_counters({}, found) == DraftReport(
        "counters", accepted=10, drafts=5, drafted=20, per_position=(6,)
    )
    assert report_from_counters(found, dict.fromkeys(found, 0.0)) is None


def test_two_servers_of_different_models_are_refused_with_both_shown():
    with stand_in.serving("vllm") as server, stand_in.serving("sglang") as other:
        one, two = opened(server.url), opened(other.url)
        two.require_same_model(one)
        other.fault = "weights"
        with pytest.raises(
            InputError,
            match=(
                f"{other.url}: other weights .*5 of 5 first .*{other.url} has '.+{server.url} has '"
            ),
        ):
            two.require_same_model(one)
        server.reads = [7, 8]
        with pytest.raises(
            InputError,
            match=r"reads 'The capital of France is' as \[7, 8\], model.tokenizer as \[\d",
        ):
            opened(server.url)


@pytest.mark.parametrize("fault", ["", "law"])
def test_servers_that_draw_from_another_distribution_are_named(fault, monkeypatch):
    """From the second token on, where drafts begin; first tokens alone would not show it."""
    monkeypatch.setattr(method_of_servers, "DRAWS", 24)
    sampling = SimpleNamespace(temperature=0.8, top_p=1.0, top_k=0)
    with stand_in.serving("vllm") as server, stand_in.serving("sglang", fault) as other:
        one, two = (ServerPeer(each.url) for each in (server, other))
        OPENED.extend((one, two))
        for method in (one, two):
            method.check(card())
            method.bind(Target(card(), None, 64, sampling))
        two.require_same_model(one)
        message = "first tokens are not drawn as the baseline draws them: p = 0.0005"
        assert any(message in text for text in two.warnings) == bool(fault)


def test_equal_servers_are_rarely_called_different_and_others_nearly_always():
    """By simulation; false alarms at a level of 20 %, so that few comparisons show their share."""
    rng, laws = np.random.default_rng(0), {"peaked": [0.9, 0.08, 0.02], "flat": [0.02] * 50}

    def drawn(law) -> list:
        return [rng.choice(len(law), (DRAWS, TOKENS), p=law).tolist() for _ in TEXTS]

    for law in laws.values():
        found = [compare_draws(drawn(law), drawn(law), seed, 99) for seed in range(100)]
        assert 8 <= sum(chance <= 0.2 for chance in found) <= 33  # 99.9 % of binomials
    for law, moved in ((laws["peaked"], 0.15), (laws["flat"], 0.25)):
        other = np.array(law) * (1 - moved)
        other[-1] += moved  # the total variation is a little less
        found = [compare_draws(drawn(law), drawn(other), seed) for seed in range(10)]
        assert max(found) < LEVEL


def test_a_server_without_ids_gets_text_and_the_run_says_so():
    with stand_in.serving("openai", "no_ids", speculates=False, counts=False) as server:
        method = opened(server.url)
        out = ask(method, card().tokenizer("a story").input_ids)
        assert isinstance(server.asked[-1][1]["prompt"], str)
        assert out.ids == card().tokenizer(" a" * LIMIT, add_special_tokens=False).input_ids
        assert set(out.accept) == {1}
        assert any("text only" in text for text in method.warnings)


def test_steps_add_up_whatever_was_reported():
    """As llama.cpp answers: accepted tokens behind EOS count there, and plain decoding tells
    nothing.
    """

    def found(tokens: int, chunks: list[int] | None, *reports: DraftReport):
        account = reconcile(tokens, chunks, reports)
        sizes = [emitted for emitted, _ in account.steps]
        assert sum(sizes) == tokens
        return sizes, account.source, account.complaints

    request = DraftReport("request", 14, drafted=32)
    sizes, source, _ = found(21, None, request, DraftReport("counters", 14, 8, 32))
    assert (len(sizes), source) == (8, "request")
    # without counters the token behind EOS hides a step
    assert len(found(21, None, request)[0]) == 7
    assert reconcile(5, None, []).steps == ((1, 0),) * 5
    # A last step that is cut counts tokens behind the end; steps without a draft are reports by
    # nobody.
    cut = DraftReport("request", accepted=7, drafts=2, drafted=8, histogram=(0, 0, 0, 1, 1))
    assert found(6, [4, 2], cut) == ([4, 2], "request", ())
    assert found(9, [9], cut)[0] == [4, 5]
    assert found(3, [1, 1, 1])[1] == "chunks"
    # as seen of vLLM: chunks of several steps, and 3 behind EOS
    joined = DraftReport("request", 27, 8, 32, (1, 0, 0, 1, 6))
    sizes, source, complaints = found(32, [5, 5, 5, 5, 5, 7], joined)
    assert (len(sizes), source) == (8, "request")
    assert "several steps" in complaints[0]
    # with another client's: not what was emitted
    foreign = DraftReport("counters", 57, 16, 64, (2, 0, 0, 1, 13))
    assert found(32, [5, 5, 5, 5, 5, 7], foreign)[1] == "chunks"


def test_a_run_of_servers_end_to_end(tmp_path):
    with (
        stand_in.serving("vllm", speculates=False) as plain,
        stand_in.serving("vllm") as drafting,
        stand_in.serving("vllm", "other") as other,
    ):
        settings = settings_of(tmp_path, plain, drafting, row_of("off", other))
        assert run_command.main(settings) == 0
    found = {record.method: record for record in read_run(tmp_path).records}
    assert found["server"].lossless.equal
    assert found["server"].turns[0].accept == TRUE
    assert found["off"].lossless.divergence == [0, 5]
    verdict = found["off"].lossless  # the baseline says that both tokens are as good
    assert (verdict.equal, verdict.positions, verdict.ties, verdict.violations) == (False, 1, 1, 0)
    assert verdict.worst_gap == pytest.approx(0.01)


SAID = 'rejection_sample_method": "synthetic'


def test_a_run_of_a_server_that_draws_acceptance_claims_times_only(tmp_path):
    """Its figures are recorded and marked; neither ranked nor compared with the baseline's ids."""
    with (
        stand_in.serving("vllm", speculates=False) as plain,
        stand_in.serving("vllm", "synthetic") as drawing,
    ):
        assert run_command.main(settings_of(tmp_path, plain, drawing)) == 0
    run = read_run(tmp_path)
    assert [run.about.methods[name].synthetic for name in ("vanilla", "server")] == [None, SAID]
    assert {record.method for record in run.records if record.lossless} == {"vanilla"}
    findings = gather([run])
    assert (
        findings.facts[0].time_note == f"time only: acceptance drawn from a table (server: {SAID})"
    )
    rows = findings.summary[findings.summary["category"] == "overall"].set_index("method")
    assert rows.loc["server", "mat"] > 1
    assert rows["speedup"].isna().all()
    assert not find_headlines(findings)
    assert any("its text is not the model's" in text for text in run.about.warnings)
    assert "acceptance drawn from a table" in (tmp_path / "report.html").read_text()


PADDED = 2100  # of no token of the bundled tokenizer, which has 2048


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"vocab_size": 2112}, ""),
        ({"model_type": "unheard_of", "text_config": {"vocab_size": 2112}}, ""),
        (None, f"token id {PADDED}; expected an id below 2048"),
        ({"vocab_size": PADDED}, f"token id {PADDED}; expected an id below {PADDED}"),
        ({"vocab_size": "x"}, "config.json: vocab_size is 'x'"),
    ],
)
def test_ids_are_bounded_by_the_rows_of_the_embedding_if_there_is_a_config(
    tmp_path, monkeypatch, capsys, config, words
):
    monkeypatch.setattr(stand_in, "answer_of", lambda prompt, limit, eos=None: [PADDED] * limit)
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(locate("bundled:tiny", ""), name), folder)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    with stand_in.serving("vllm", speculates=False) as plain, stand_in.serving("vllm") as drafting:
        settings = settings_of(tmp_path / "run", plain, drafting, model=str(folder))
        assert run_command.main(settings) == (2 if words else 0)
        assert words in capsys.readouterr().err
        if not words:
            assert {PADDED} == {
                each
                for record in read_run(tmp_path / "run").records
                for each in record.turns[0].ids
            }


def judged(judge, *turns: TurnRecord):
    """The verdict on the second of two answers, vanilla's first."""
    rows = [record(name, "c", [turn]) for name, turn in zip(("vanilla", "x"), turns, strict=True)]
    judge(rows, {"vanilla": [[1]], "x": [[1]]})
    return rows[1].lossless


def test_a_place_that_differs_is_a_tie_by_the_baselines_own_figures_or_a_violation():
    for gap, expected in ((0.0005, (1, 1, 0)), (0.01, (1, 0, 1)), (None, (0, 0, 0))):

        def compared(rows, prompts, gap=gap):
            asked_for = {((1, 7), 8, 9): gap}
            compare_block(
                rows, prompts, lambda ids, *two: asked_for.get((tuple(ids), *two)), "float32"
            )

        verdict = judged(compared, turn([1], ids=[7, 8]), turn([1], ids=[7, 9]))
        assert verdict.divergence == [0, 1]
        assert (verdict.positions, verdict.ties, verdict.violations) == expected


def test_a_row_of_text_is_judged_by_its_text():
    """Other ids of the same text are no violation, though no id would be the argmax; another text
    differs.
    """

    def forced(rows, prompts):
        judge_block(rows, prompts, lambda prompt, ids: [5.0] * len(ids), "float32")

    def compared(rows, prompts):
        compare_block(rows, prompts, lambda *asked: 5.0, "float32")

    for judge in (forced, compared):
        said = turn([1], ids=[7, 8], text="ab")
        same, other = (
            judged(judge, said, turn([], ids=[9], text=text, stats={"text_only": 1.0}))
            for text in ("ab", "ac")
        )
        assert (same.equal, same.violations, same.divergence) == (True, 0, None)
        assert (other.equal, other.violations, other.divergence) == (False, 0, [0, 0])
        assert judged(judge, said, turn([], ids=[9], text="ab")).violations == 1


PAGE = """# HELP vllm:num_requests_running Requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 2.5e-1
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
DCGM_FI_DEV_GPU_UTIL{gpu="0"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1"} 50
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 300.5
DCGM_FI_DEV_POWER_USAGE{gpu="1"} 99.5
"""


LMDEPLOY = (
    'lmdeploy:num_requests_running{engine="0"} 1.0\nlmdeploy:gpu_cache_usage_perc{engine="0"} 0.1'
)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (PAGE, {"running": 5, "waiting": 7, "kv_cache": 0.75, "gpu_busy": 0.7, "gpu_power_w": 400}),
        ("sglang:num_running_reqs 4\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5", (4, 1, 0.5)),
        (
            "llamacpp:requests_processing 4\nllamacpp:requests_deferred 0\n",
            {"running": 4, "waiting": 0},
        ),
        (LMDEPLOY, {"running": 1, "kv_cache": 0.1}),
        (
            "trtllm_num_requests_waiting 2\ntrtllm_kv_cache_utilization 0.6 17000000",
            {"waiting": 2, "kv_cache": 0.6},
        ),
        (
            "vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n"
            "vllm:kv_cache_usage_perc 1e999",
            {},
        ),
        ("x" * 100_000 + "\n<html>vllm:num_requests_running</html>", {}),
    ],
)
def test_a_servers_own_figures_are_read_of_each_engines_page(page, expected):
    expected = expected if isinstance(expected, dict) else dict(zip(GAUGES, expected, strict=False))
    assert read_gauges(page) == pytest.approx(expected)


def chat_run(folder, url: str, *settings: str):
    row = ["method=[server]", f"method.server.url={url}", "method.server.endpoint=chat"]
    few = [f"measure.{name}=false" for name in ("control", "lossless")]
    case = ["model=tiny", "measure.warmup=0", "suite.ids=[1]", "decode.max_new_tokens=24"]
    records = execute_job(folder, *case, *row, *few, *settings)
    return next(record for record in records if record.method == "server")


@pytest.mark.parametrize("dialect", ["vllm", "llama_cpp"])
def test_a_chat_endpoint_gets_messages_and_its_prompt_is_compared_with_ours(dialect, tmp_path):
    prompts = PromptBuilder(card().tokenizer, None)
    changes = {"longer": lambda ids: [*ids, 7]}
    if dialect == "vllm":  # which reports the ids, not only their number
        changes["other"] = lambda ids: ids[::-1]
    with stand_in.serving(dialect) as server:
        server.write = lambda body: prompts._encode(body["messages"])
        found = chat_run(tmp_path / "same", server.url, "model.system=Be brief.")
        path, body, _ = server.asked[-1]
        assert path == stand_in.CHAT
        roles = [message["role"] for message in body["messages"]]
        assert roles == ["system", "user", "assistant", "user"][: len(roles)]
        assert "prompt" not in body
        assert found.status == "ok"
        (last,) = found.turns[-1:]
        assert (sum(last.accept), sum(last.proposed)) == (LIMIT - 1, stand_in.DRAFT * len(TRUE))
        assert (last.stats["source_request"], last.stats["request_accepted"]) == (1, ACCEPTED)
        for name, change in changes.items():
            server.write = lambda body, change=change: change(prompts._encode(body["messages"]))
            found = chat_run(tmp_path / name, server.url)
            assert "is not the one of 32 tokens" in found.error["message"]


def test_a_chat_endpoint_that_parses_tool_calls_is_refused():
    with (
        stand_in.serving("openai", "tool_parser") as server,
        pytest.raises(InputError, match="its parser of tool calls"),
    ):
        opened(server.url, endpoint="chat")


def test_a_conversation_has_its_tools_and_calls_as_the_api_writes_them():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    result = {"role": "tool", "content": "2", "name": "f", "tool_call_id": "c1"}
    own = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "assistant", "content": "2"},
    ]
    messages = ({"role": "user", "content": "Go"}, own[0], result, own[1])
    tools = (
        {
            "type": "function",
            "function": {"name": "f", "description": "", "parameters": {"type": "object"}},
        },
    )
    tokenizer = copy.copy(card().tokenizer)
    tokenizer.chat_template = "{{ tools }}{% for m in messages %}{{ m }}{% endfor %}"
    case = Case("1", "qa", ("Go", "2"), "", (), None, messages, tools)
    found = PromptBuilder(tokenizer, None).conversation(case, ("x",))
    assert found["tools"] == list(tools)
    assert found["tool_choice"] == "none"
    assert found["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert [message["role"] for message in found["messages"]] == ["user", "assistant", "tool"]
