"""The check of a GPU, in tiny sizes on a CPU: every part, and what is left of one that is ended."""

from __future__ import annotations

import signal
from itertools import islice

import pytest
import torch

from scripts.lab import gpu
from scripts.lab.__main__ import main

CPU = torch.device("cpu")


class Case:
    """A case of a kernel with a known error, or one that cannot be computed."""

    def __init__(self, error):
        self.error = error

    def measure(self, device):
        if self.error is None:
            raise RuntimeError("out of resources\nmore")
        return self.error

    def __str__(self):
        return f"case {self.error}"


WRONG = [[0.5, 1.1], [float("nan")], [None, 0.5]]


@pytest.mark.parametrize("errors", [[0.5, 1.0], *WRONG], ids=str)
def test_a_kernel_is_wrong_if_its_error_exceeds_the_limit(errors, monkeypatch, capsys):
    code = int(errors in WRONG)
    monkeypatch.setattr(gpu, "list_cases", lambda dtype, device: map(Case, errors))
    assert gpu.check_kernels(torch.float32, CPU) == code
    printed = capsys.readouterr().out
    assert all(f"| case {error} |" in printed for error in errors)
    assert ("NO" in printed) == bool(code)
    assert ("RuntimeError: out of resources |" in printed) == (None in errors)


def test_the_kernels_pass_in_the_interpreter():
    pytest.importorskip("triton", exc_type=ImportError)
    for case in islice(gpu.list_cases(torch.float32, CPU), 2):
        assert case.measure(CPU) <= 1


@pytest.fixture(autouse=True)
def _signals():
    """The command's answer to SIGTERM stays in its test."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


LONG = (pytest.param(part, marks=pytest.mark.exhaustive) for part in ("latency-triton", "methods"))


@pytest.mark.slow
@pytest.mark.parametrize("part", ["kernels-float16", *LONG])
def test_a_part_runs_on_a_cpu(part, tmp_path):
    if part.endswith(("float16", "triton")):
        pytest.importorskip("triton", exc_type=ImportError)
    assert main(["gpu", "--device", "cpu", "--parts", part, "--out", str(tmp_path)]) == 0
    text = (tmp_path / f"{part}.txt").read_text()
    expected = {"kernels": "0 cases are wrong", "latency": "T(q)/T(1)", "methods": "vanilla"}
    assert expected[part.partition("-")[0]] in text
    assert text.endswith(f"{part}: done\n")


def test_a_part_that_is_ended_keeps_its_lines_and_the_next_one_runs(tmp_path, monkeypatch, capfd):
    scripts = {
        "kernels-float32": "import time; print('first'); time.sleep(600)",
        "latency-eager": "import os; print('before'); os.abort()",
        "methods": "print('last')",
    }
    monkeypatch.setattr(gpu, "find_command", lambda part, *_: ["-c", scripts[part]])
    options = ["--device", "cpu", "--out", str(tmp_path), "--limit", "5"]
    assert main(["gpu", "--parts", *scripts, *options]) == 1
    texts = {part: (tmp_path / f"{part}.txt").read_text().split("\n") for part in scripts}
    assert texts["kernels-float32"][0] == "first"
    assert "kernels-float32: ended after 5 s" in texts["kernels-float32"]
    assert "latency-eager: exit code -6" in texts["latency-eager"]
    assert texts["methods"][0] == "last"
    assert "| methods | done |" in capfd.readouterr().out
