"""``engine.attention=auto``: our kernels on a GPU that passes their check, by a CPU that is called
a GPU.
"""

from __future__ import annotations

import builtins
import json
from dataclasses import replace

import pytest
import torch
from ranks import card_of

from builders.models import VOCAB, build
from draft_models import MAKE, PARALLEL
from methods.hybrid import Hybrid
from methods.parts.draft_lm import DraftLM
from methods.parts.draft_method import TargetTraits
from specbench.models import choose
from specbench.models.facade import ModelCard
from specbench.models.fast import attention
from specbench.models.fast.attention import FastOptions
from specbench.models.fast.operations import SmallOps
from specbench.models.runner import make_runner
from specbench.models.tensor_parallel.share import load_share
from specbench.models.tensor_parallel.start import TeamSettings
from specbench.types import InputError

judge = pytest.importorskip(
    "specbench.models.fast.kernels.judge",
    reason="Triton is not installed: pip install '.[triton]'", exc_type=ImportError,
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
        self.engine, reason, note = choose.make_engine(kind, self.model, card, 20, "sdpa", options)
        assert reason is None
        return self.engine.attention, note


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
    assert gpu.engine.records_batches
    assert gpu.engine.describe_forward() == "operations of torch and attention=fused"
    [cases] = gpu.checks
    assert {type(case) for case in cases} == {
        judge.AttentionCase,
        judge.RowsCase,
        judge.ProductsCase,
    }
    assert {(case.dtype, case.key_heads, case.groups, case.size) for case in cases} == {
        (torch.float16, 2, 2, 16)
    }
    attending = [case for case in cases if isinstance(case, judge.AttentionCase)]
    # of at most 20 nodes and the root
    assert {(case.window, case.width) for case in attending} == {(12, 1), (12, 8)}
    assert {(case.hidden, case.inner) for case in cases if case not in attending} == {(64, 128)}
    assert min(case.pasts for case in attending) == (0,)


def test_a_fault_leaves_sdpa_with_the_reason(gpu):
    gpu.fault = FAULT
    assert gpu.choose() == (
        "sdpa",
        f"engine.attention=auto chose sdpa: the kernels are wrong here, {FAULT}",
    )
    gpu.fault = None
    assert gpu.choose()[0] == "sdpa"  # kept
    assert len(gpu.checks) == 1


def test_a_true_fault_is_found(gpu, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(
        judge, "find_fault_once", lambda cases, device: judge.find_fault([*cases][:1], device)
    )
    assert gpu.choose() == ("fused", None)
    right = judge.tree_attention.attend
    monkeypatch.setattr(judge.tree_attention, "attend", lambda *given: right(*given) * 1.1)
    way, note = gpu.choose()
    assert way == "sdpa"
    assert "the kernels are wrong here, AttentionCase(" in note


def test_a_check_that_cannot_run_is_a_reason_and_is_tried_again(gpu):
    gpu.fault = RuntimeError("Failed to find C compiler.\nmore")
    note = (
        "engine.attention=auto chose sdpa: the check of the kernels failed, RuntimeError: Failed to"
        " find C compiler."
    )
    assert gpu.choose() == ("sdpa", note)
    gpu.fault = None
    assert gpu.choose() == ("fused", None)


def test_without_triton_it_is_sdpa_but_fused_is_an_error(gpu, monkeypatch):
    monkeypatch.setattr(attention, "find_spec", lambda name: None)
    way, note = gpu.choose()
    assert way == "sdpa"
    assert note.startswith(
        "engine.attention=auto chose sdpa: Triton is not installed; pip install 'specbench[triton]'"
    )
    with pytest.raises(InputError, match=r"^engine.attention=fused: Triton is not installed"):
        gpu.choose(options=FastOptions(attention="fused"))
    assert gpu.checks == []


@pytest.mark.parametrize(
    "given", [{"kind": "eager"}, {"device": "cpu"}, {"options": FastOptions(attention="sdpa")}]
)
def test_where_there_is_no_choice_nothing_is_reported_or_imported(gpu, given, monkeypatch):
    def refuse(name, *rest, **named):
        assert not name.startswith(("triton", "specbench.models.fast.kernels")), name
        return load(name, *rest, **named)

    load = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert gpu.choose(**given) == ("sdpa", None)
    assert gpu.checks == []


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_each_rank_checks_the_shapes_of_its_share(gpu, family):
    card = replace(card_of(build(family, torch.float16)), device="cuda")
    assert choose.choose_attention(AUTO, card, 20) == (AUTO, None)
    for rank, vocab in ((0, VOCAB), (1, 1)):  # the head is rank 0's
        share = load_share(card, "cpu", rank, 2, revision=None, safetensors=True, seed=0)
        settings = TeamSettings(card, 2, 20, options=AUTO, rank=rank)
        gpu.fault = f"fault of rank {rank}"
        assert (
            settings.explain_unfused(share) == f"the kernels are wrong here, fault of rank {rank}"
        )
        [last] = gpu.checks[rank][-1:]
        assert last == judge.ProductsCase(torch.float16, 1, 2, 16, 17, 64, 64, vocab, False)
        assert replace(settings, options=FastOptions()).explain_unfused(share) is None
    assert choose.take_fused(AUTO, None) == (FastOptions(attention="fused"), None)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_draft_model_has_the_kernels_if_they_pass_on_its_own_shapes(gpu, family):
    model = build(family, torch.float16)
    runner = make_runner(model, 256, "fused")
    assert (type(runner._model.small), runner._attend) == (
        judge.small_ops.FusedOps,
        judge.tree_attention.attend,
    )
    assert runner.note is None
    [cases] = gpu.checks
    assert cases[-1] == judge.ProductsCase(
        torch.float16, 2, 2, 16, 17, 64, 128, VOCAB, family == "qwen2"
    )
    assert {
        (case.width, case.columns) for case in cases if isinstance(case, judge.AttentionCase)
    } == {(width, columns) for width in (1, 8, 64) for columns in (None, choose.NODES)}
    assert make_runner(model, 256, "sdpa").note is make_runner(model, 256, "flex").note is None
    assert len(gpu.checks) == 1


@pytest.mark.parametrize("way", ["fused", "triton"])
def test_a_draft_model_on_whose_shapes_they_fail_has_sdpa_and_its_method_warns(gpu, way):
    """Through any port of a partner that drafts, and as a member of a hybrid."""
    gpu.fault, model = FAULT, build("llama", torch.float16)
    note = f"the draft model has engine.attention=sdpa: the kernels are wrong here, {FAULT}"
    traits = TargetTraits(VOCAB, frozenset(), None, torch.device("cpu"))
    for method in (
        MAKE["speculative_sampling"](),
        *(PARALLEL["pearl"](port=port) for port in ("inline", "thread")),
    ):
        assert method.warnings == ()
        method.adopt(DraftLM(model, 256, way), traits)
        assert method.warnings == (note,)
        assert Hybrid({"member": method}).warnings == (f"member: {note}",)
        method.close()
    runner = make_runner(model, 256, way)
    assert (type(runner._model.small), runner._attend) == (SmallOps, None)


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
    [lambda kept: kept[: len(kept) // 2], lambda kept: "[" * 100000, lambda kept: "3",
     lambda kept: json.dumps(["other", None]), lambda kept: "\udcff"],
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
