"""Synthetic runs in the shape a real one has: cases of different length and difficulty, methods
that help some more.
"""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from matplotlib.figure import Figure
from report.browser import Browser, find_browser
from rich.console import Console

from builders.records import record, turn
from specbench.commands import main
from specbench.records.record import CONTROL, PHASES, VANILLA, CaseRecord, Lossless, TurnRecord
from specbench.records.store import MANIFEST, RECORDS
from specbench.report import Report, build_report, print_findings
from specbench.report.frames.findings import Findings
from specbench.report.frames.load import Load
from specbench.report.plots import canvas
from specbench.screen import USAGE

_FORWARD_S = 0.025
_TILT = {
    "multi-turn": 0.9,
    "translation": 0.6,
    "summarization": 1.5,
    "qa": 0.8,
    "math_reasoning": 1.1,
    "rag": 1.3,
}
CATEGORIES = tuple(_TILT)

_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


_SAVE, _FORMATS = Figure.savefig, canvas.FORMATS


def _save_a_pixel(figure: Figure, file: Any, **options: Any) -> None:
    file.write(_PIXEL)


@pytest.fixture(scope="session", autouse=True)
def _rough_plots() -> Iterator[None]:
    """Plots are laid out in full, but saved as one pixel: saving is half of a report's time."""
    with (
        mock.patch.object(canvas, "FORMATS", ("png",)),
        mock.patch.object(Figure, "savefig", _save_a_pixel),
    ):
        yield


@pytest.fixture(scope="session")
def fine_plots(_rough_plots: None) -> Callable[[], AbstractContextManager[None]]:
    """Within what it returns plots are saved as a user gets them."""

    @contextlib.contextmanager
    def saving() -> Iterator[None]:
        with (
            mock.patch.object(canvas, "FORMATS", _FORMATS),
            mock.patch.object(Figure, "savefig", _SAVE),
        ):
            yield

    return saving


class Synthesis:
    """Draws records from a seed: a method is (mean draft length, chance that a node is right,
    drafting time [s]).
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def turn(
        self, ids: list[int], method: tuple[float, float, float] | None, tilt: float, peer: bool
    ) -> TurnRecord:
        accept, proposed = self._steps(len(ids) - 1, method, tilt)
        jitter = 1 + 0.01 * abs(self._random.standard_normal())
        forward = [_FORWARD_S * (1 + 0.004 * count) for count in proposed]
        draft_s = (method[2] if method else 0.0) * len(accept)
        small = {
            name: each * len(accept)
            for name, each in (("prepare", 2e-4), ("verify", 3e-4), ("update", 1e-4))
        }
        phases = {**small, "draft": draft_s, "forward": sum(forward)}
        phases = {name: seconds * jitter for name, seconds in phases.items()}
        if peer:  # nobody saw its drafts
            proposed = [0] * len(accept)
        return TurnRecord(
            prompt_tokens=120,
            ids=ids,
            finish="length",
            accept=accept,
            proposed=proposed,
            depth=proposed,
            fed=[count + 1 for count in proposed],
            prefill_s=0.06 * jitter,
            decode_s=sum(phases.values()) + 1e-5,
            phases_s={} if peer else {name: phases[name] for name in PHASES},
            text="an answer",
        )

    def _steps(
        self, room: int, method: tuple[float, float, float] | None, tilt: float
    ) -> tuple[list[int], list[int]]:
        accept, proposed = [], []
        while room > 0:
            size = int(self._random.poisson(method[0])) if method else 0
            chance = min(0.95, method[1] * tilt) if method else 0.0
            taken = int((np.cumprod(self._random.random(size) < chance)).sum())
            accept.append(min(taken + 1, room))
            proposed.append(size)
            room -= accept[-1]
        return accept, proposed

    def ids(self) -> list[int]:
        return self._random.integers(5, 900, int(self._random.integers(1, 90))).tolist()


def records_of(
    methods: dict[str, tuple[float, float, float]],
    *,
    categories: Sequence[str] = CATEGORIES,
    per_category: int = 10,
    rounds: int = 1,
    control: bool = True,
    peers: Sequence[str] = (),
    seed: int = 0,
) -> list[CaseRecord]:
    """Records of vanilla, its control, and the methods, block by block."""
    synthesis = Synthesis(seed)
    names = [VANILLA, *([CONTROL] if control else []), *methods]
    cases = [
        (category, f"{category}-{number}")
        for category in categories
        for number in range(per_category)
    ]
    found = []
    for place, (category, case) in enumerate(cases):
        answers = [synthesis.ids() for _ in range(2 if category == "multi-turn" else 1)]
        for number, position in itertools.product(range(rounds), range(len(names))):
            name, block = names[position], place * rounds + number
            tilt = _TILT.get(category, 1.0)
            turns = [synthesis.turn(ids, methods.get(name), tilt, name in peers) for ids in answers]
            judged = Lossless(True, None, sum(map(len, answers)), 0, 0, 0.0)
            state = 0 if name in (VANILLA, CONTROL) else 4096 * (position + 1)
            found.append(
                CaseRecord(
                    case,
                    category,
                    category,
                    name,
                    number,
                    block,
                    position,
                    "ok",
                    turns,
                    judged,
                    state,
                )
            )
    return found


def fail(record: CaseRecord, message: str = "no") -> None:
    """Turn a record into that of a case that raised."""
    record.status, record.turns, record.lossless = "error", [], None
    trace = f"Traceback (most recent call last):\n  ...\nValueError: {message}\n"
    record.error = {"type": "ValueError", "message": message, "traceback": trace, "turn": 0}


def fail_one(manifest: dict[str, Any], records: list[CaseRecord]) -> None:
    """An edit of a run, after which pld failed in its first case."""
    fail(next(record for record in records if record.method == "pld"))


def manifest_of(methods: dict[str, dict[str, Any]], **changes: Any) -> dict[str, Any]:
    """A manifest as ``specbench`` writes it; methods: name -> entry changes."""
    entry = {"parameters": {}, "reset": "case", "lossless": True, "peer": False}
    manifest: dict[str, Any] = {
        "schema": 1,
        "specbench": "0.1.0",
        "created": "2026-01-02T03:04:05+00:00",
        "config": {
            "decode": {"temperature": 0.0, "max_new_tokens": 256},
            "engine": {"kind": "eager"},
        },
        "config_hash": "0a1b2c3d",
        "model": {
            "name": "tiny",
            "family": "llama",
            "parameters": 1_000_000,
            "dtype": "float32",
            "device": "cpu",
        },
        "suite": {"name": "mini", "cases": 60, "turns": 70, "sha256": "ab" * 32},
        "methods": {VANILLA: dict(entry)}
        | {name: entry | changed for name, changed in methods.items()},
        "control": True,
        "rounds": 1,
        "temperature": 0.0,
        "versions": {"python": "3.11.2", "torch": "2.9.0"},
        "git": {"commit": "c0ffee", "dirty": False},
        "machine": {"cpu": {"model": "a processor", "cores": 8}, "memory_bytes": 1 << 34},
        "warnings": [],
    }
    return manifest | changes


def write_run(directory: Path, manifest: dict[str, Any], records: list[CaseRecord]) -> Path:
    """Write a run: the methods of a block are in the places in which they come."""
    directory.mkdir(parents=True, exist_ok=True)
    manifest["control"] = not records or any(each.method == CONTROL for each in records)
    for _, block in itertools.groupby(records, key=lambda each: each.block):
        places: dict[str, int] = {}
        for each in block:
            each.position = places.setdefault(each.method, len(places))
    (directory / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    text = "".join(record.to_json() + "\n" for record in records)
    (directory / RECORDS).write_text(text, encoding="utf-8")
    return directory


MethodSpecs = dict[str, tuple[float, float, float]]
THREE: MethodSpecs = {
    "pld": (4.0, 0.35, 4e-4),
    "token_recycling": (20.0, 0.5, 9e-4),
    "hf_assisted": (5.0, 0.6, 4e-3),
}


@pytest.fixture
def make_manifest() -> Callable[..., dict[str, Any]]:
    """``manifest_of``."""
    return manifest_of


def build_run(
    directory: Path,
    methods: MethodSpecs | None = None,
    *,
    peers: Sequence[str] = ("hf_assisted",),
    edit: Callable[[dict[str, Any], list[CaseRecord]], object] | None = None,
    engine: str = "eager",
    parameters: dict[str, dict[str, Any]] | None = None,
    **options: Any,
) -> Path:
    """Write a synthetic run.

    manifest: changes of it; edit: called with it and the records; parameters: of the methods that
    have any; other options as ``records_of`` takes them.
    """
    specs = THREE if methods is None else methods
    changes = {"rounds": options.get("rounds", 1)} | options.pop("manifest", {})
    manifest = manifest_of({method: {"peer": method in peers} for method in specs}, **changes)
    for method, values in (parameters or {}).items():
        manifest["methods"][method]["parameters"] = values
    if engine != "eager":
        manifest["config"]["engine"]["kind"] = engine
    records = records_of(specs, peers=peers, **options)
    if edit:
        edit(manifest, records)
    return write_run(directory, manifest, records)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """``build_run`` under a name."""

    def make(name: str = "run", methods: MethodSpecs | None = None, **options: Any) -> Path:
        return build_run(tmp_path / name, methods, **options)

    return make


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, fine_plots: Callable) -> Report:
    """A report with its plots, made once; not to be changed."""
    with fine_plots():
        return build_report([build_run(tmp_path_factory.mktemp("built") / "run", per_category=2)])


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command and return what it prints: the message, which names the command, of code 2."""

    def run(command: str, *arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        try:
            found = main([command, *map(str, arguments)])
        except SystemExit as end:
            found = end.code
        out, error = capsys.readouterr()
        assert found == code, out + error
        assert code != USAGE or f"specbench {command}: error: " in error
        return error if code == USAGE else out

    return run


@pytest.fixture
def refused(output: Callable[..., str]) -> Callable[..., str]:
    """Run a command that must refuse its arguments, and return the message."""
    return partial(output, code=USAGE)


def printed(findings: Findings, width: int = 100, load: Load | None = None) -> str:
    """What a terminal of this width shows of a report."""
    stream = io.StringIO()
    print_findings(findings, Console(file=stream, width=width, highlight=False), load)
    return stream.getvalue()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser, closed after the tests of a file."""
    if find_browser() is None or os.name != "posix":
        pytest.skip("no Chromium (Debian: apt install chromium) to open the page in")
    opened = Browser(find_browser(), tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def compile_latex(preamble: str, body: str, folder: Path) -> str:
    """The log of pdflatex on a document, which must compile; the test is skipped without the
    program.
    """
    if shutil.which("pdflatex") is None:
        pytest.skip("LaTeX (pdflatex) is not installed")
    (folder / "paper.tex").write_text(rf"{preamble}\begin{{document}}{body}\end{{document}}")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    log = done.stdout.decode(errors="replace")
    assert done.returncode == 0, log[-2000:]
    return log


def serve(manifest: dict[str, Any], records: list[CaseRecord], requests: int) -> None:
    """Make a run one of a closed load, each record in a stretch that has its turns one after the
    other.
    """
    manifest["config"]["load"] = {"kind": "closed", "requests": requests}
    about = {"forwards": 1, "requests": requests, "rows": requests}
    for each in records:
        ends_s = 0.0
        for made in each.turns:
            alike = [requests] * len(made.accept)
            made.load = {"arrival_s": ends_s, "queue_s": 0.0, "requests": alike, "rows": alike}
            ends_s += made.wall_s
        each.stretch = about | {
            "seconds": ends_s,
            "tokens": sum(len(made.ids) for made in each.turns),
        }


def stretch_of(
    method: str,
    block: int,
    seconds: float,
    tokens: int,
    cases: int = 4,
    requests: int = 4,
    decode_s: float = 1.0,
) -> list[CaseRecord]:
    """A stretch in which each request waits ``case`` times 40 ms before its prompt is read."""
    about = {"seconds": seconds, "tokens": tokens, "forwards": 10, "requests": 40, "rows": 70}
    accept, drafted = ([1] * 4, 0) if method == VANILLA else ([2, 2], 2)
    steps = len(accept)
    found = []
    for case in range(cases):
        made = turn(
            accept,
            [drafted] * steps,
            text="words",
            step_s=[decode_s / steps] * steps,
            decode_s=decode_s,
        )
        alike = {"requests": [requests] * steps, "rows": [7] * steps}
        made.load = {"arrival_s": 0.1 * case, "queue_s": 0.04 * case, **alike}
        found.append(record(method, f"{block}-{case}", [made], block=block, stretch=about))
    return found


@pytest.fixture
def two_cases(make_manifest):
    """Vanilla and pld on one case of qa and one of rag."""
    records = [
        record(VANILLA, "a", [turn([1] * 4, decode_s=4.0)]),
        record("pld", "a", [turn([3, 1], [4, 0], decode_s=1.0)], state_bytes=64),
        record(VANILLA, "b", [turn([1] * 8, decode_s=8.0)], "rag"),
        record("pld", "b", [turn([2, 6], [5, 5], decode_s=3.0)], "rag", state_bytes=32),
    ]
    return records, make_manifest({"pld": {}})
