"""``engine.attention=auto``: our kernels on a GPU that passes their check, by a CPU that is called a GPU."""

from __future__ import annotations

import builtins
import json

import pytest
import torch

from builders.models import build
from specbench.models import choose
from specbench.models.facade import ModelCard
from specbench.models.fast import attention
from specbench.models.fast.attention import FastOptions
from specbench.types import InputError

judge = pytest.importorskip(
    "specbench.models.fast.kernels.judge", reason="Triton is not installed: pip install '.[triton]'",
    exc_type=ImportError,
)  # fmt: skip
AUTO = FastOptions(attention="auto")
FAULT = "RowsCase(...): the error is 7 times the limit"


class Gpu:
    """What a check finds, and the cases of each."""

    def __init__(self, model) -> None:
        self.model, self.name, self.fault, self.checks = model, "A GPU", None, []

    def check(self, cases, device):
        self.checks.append([*cases])
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.fault

    def choose(self, kind="auto", options=AUTO, device="cuda:0"):
        config = self.model.config
        card = ModelCard("m", "m", config, None, 256, frozenset(), "float16", device)
        engine, reason, note = choose.make_engine(kind, self.model, card, 20, "sdpa", options)
        assert reason is None
        return engine.attention, note


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    gpu = Gpu(build("mistral-window", torch.float16))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: gpu.name)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(judge, "DRIVER", tmp_path / "driver")
    monkeypatch.setattr(judge, "find_fault", gpu.check)
    return gpu


def test_kernels_that_pass_on_the_shapes_of_the_model_are_taken(gpu):
    assert gpu.choose() == ("fused", None)
    [cases] = gpu.checks
    assert {type(case) for case in cases} == {judge.AttentionCase, judge.RowsCase, judge.ProductsCase}
    assert {(case.dtype, case.key_heads, case.groups, case.size) for case in cases} == {(torch.float16, 2, 2, 16)}
    attending = [case for case in cases if isinstance(case, judge.AttentionCase)]
    assert {(case.window, case.width) for case in attending} == {(12, 1), (12, 8)}  # of at most 20 nodes and the root
    assert {(case.hidden, case.inner) for case in cases if case not in attending} == {(64, 128)}
    assert min(case.pasts for case in attending) == (0,)


def test_the_chosen_engine_records_batches_and_names_its_attention(gpu):
    config = gpu.model.config
    card = ModelCard("m", "m", config, None, 256, frozenset(), "float16", "cuda")
    engine, _, _ = choose.make_engine("fast", gpu.model, card, 20, "sdpa", AUTO)
    assert engine.records_batches
    assert engine.describe_forward() == "operations of torch and attention=fused"


def test_a_fault_leaves_sdpa_with_the_reason(gpu):
    gpu.fault = FAULT
    assert gpu.choose() == ("sdpa", f"engine.attention=auto chose sdpa: the kernels are wrong here, {FAULT}")
    gpu.fault = None
    assert gpu.choose()[0] == "sdpa"  # kept
    assert len(gpu.checks) == 1


def test_a_true_fault_is_found(gpu, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(judge, "find_fault_once", lambda cases, device: judge.find_fault([*cases][:1], device))
    assert gpu.choose() == ("fused", None)
    right = judge.tree_attention.attend
    monkeypatch.setattr(judge.tree_attention, "attend", lambda *given: right(*given) * 1.1)
    way, note = gpu.choose()
    assert way == "sdpa"
    assert "the kernels are wrong here, AttentionCase(" in note


def test_a_check_that_cannot_run_is_a_reason_and_is_tried_again(gpu):
    gpu.fault = RuntimeError("Failed to find C compiler.\nmore")
    note = "engine.attention=auto chose sdpa: the check of the kernels failed, RuntimeError: Failed to find C compiler."
    assert gpu.choose() == ("sdpa", note)
    gpu.fault = None
    assert gpu.choose() == ("fused", None)


def test_without_triton_it_is_sdpa_but_fused_is_an_error(gpu, monkeypatch):
    monkeypatch.setattr(attention, "find_spec", lambda name: None)
    way, note = gpu.choose()
    assert way == "sdpa"
    assert note.startswith("engine.attention=auto chose sdpa: Triton is not installed; pip install 'specbench[triton]'")
    with pytest.raises(InputError, match=r"^engine.attention=fused: Triton is not installed"):
        gpu.choose(options=FastOptions(attention="fused"))
    assert gpu.checks == []


@pytest.mark.parametrize("given", [{"kind": "eager"}, {"device": "cpu"}, {"options": FastOptions(attention="sdpa")}])
def test_where_there_is_no_choice_nothing_is_said_or_imported(gpu, given, monkeypatch):
    def refuse(name, *rest, **named):
        assert not name.startswith(("triton", "specbench.models.fast.kernels")), name
        return load(name, *rest, **named)

    load = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert gpu.choose(**given) == ("sdpa", None)
    assert gpu.checks == []


def test_ranks_have_sdpa(gpu):
    card = ModelCard("m", "m", gpu.model.config, None, 256, frozenset(), "float16", "cuda")
    options, note = choose.choose_attention(AUTO, card, 20)
    assert options.attention == "sdpa"
    assert note == "engine.attention=auto chose sdpa: the kernels are checked for one GPU, not for ranks"


def test_a_verdict_is_used_for_the_same_gpu_driver_and_shapes_alone(gpu):
    gpu.choose()
    gpu.choose()
    assert len(gpu.checks) == 1
    gpu.name = "another GPU"
    gpu.choose()
    assert len(gpu.checks) == 2
    gpu.model = build("llama", torch.float16)  # no window
    gpu.choose()
    assert len(gpu.checks) == 3
    judge.DRIVER.write_text("NVRM version: 1")
    gpu.choose()
    assert len(gpu.checks) == 4


@pytest.mark.parametrize(
    "damage",
    [lambda kept: kept[: len(kept) // 2], lambda kept: "", lambda kept: "[" * 100000, lambda kept: "3",
     lambda kept: json.dumps(["other", None]), lambda kept: json.dumps([json.loads(kept)[0], 3]),
     lambda kept: "\udcff"],
)  # fmt: skip
def test_a_damaged_verdict_is_not_believed(gpu, tmp_path, damage):
    gpu.choose()
    [kept] = (tmp_path / "kept").rglob(judge.VERDICT)
    whole = kept.read_text()
    kept.write_text(damage(whole), errors="surrogateescape")
    gpu.fault = FAULT
    assert gpu.choose()[0] == "sdpa"
    assert len(gpu.checks) == 2
    assert json.loads(kept.read_text()) == [json.loads(whole)[0], FAULT]


def test_where_no_verdict_can_be_written_each_run_checks(gpu, monkeypatch):
    def fail(*given, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("triton.runtime.cache.FileCacheManager.put", fail)
    assert [gpu.choose(), gpu.choose()] == [("fused", None)] * 2
    assert len(gpu.checks) == 2
