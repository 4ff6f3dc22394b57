"""Serving engines that the lab starts: installed once, and an exit code for steps that are not ours."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from scripts.lab import servers
from scripts.lab.servers import compare_rows, install
from specbench.types import InputError


@pytest.mark.parametrize(
    ("steps", "equal", "code"),
    [((4, 1), True, 0), ((3, 1, 1), True, 1), ((4, 1), False, 1)],
    ids=["same", "steps", "ids"],
)
def test_an_engine_that_differs_from_ours_fails_the_check(steps, equal, code, capsys):
    judged = SimpleNamespace(equal=equal)
    rows = zip(("speculative_sampling", "server_plain", "server_draft"), ((4, 1), (1,) * 5, steps), strict=True)
    records = [
        SimpleNamespace(method=name, turns=[SimpleNamespace(accept=accept, stats={})], lossless=judged)
        for name, accept in rows
    ]
    assert compare_rows(records) == code
    assert f"| server_draft | 1 | {len(steps)} |" in capsys.readouterr().out


def test_an_engine_is_installed_once_and_anew_after_a_failure(monkeypatch, tmp_path):
    ran, codes = [], iter([0, 0, 1])
    found = SimpleNamespace(run=lambda step: ran.append(step) or SimpleNamespace(returncode=next(codes, 0)))
    monkeypatch.setattr(servers, "subprocess", found)
    with pytest.raises(InputError, match=r"llama-cpp-python==0.3.36 .*: exit code 1"):
        install("llama_cpp", tmp_path)
    program = install("llama_cpp", tmp_path)
    assert ran[3] == ran[0]  # from the beginning
    assert ran[-1][0] == "nice"
    count = len(ran)
    assert install("llama_cpp", tmp_path) == program == f"{tmp_path}/llama_cpp/build/bin/llama-server"
    assert len(ran) == count
    python = install("vllm", tmp_path)
    assert ran[-1][:5] == [python, "-m", "pip", "uninstall", "-y"]
    with pytest.raises(InputError, match="transformers is a package of this environment"):
        install("transformers", tmp_path)
