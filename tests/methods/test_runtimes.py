"""Rows of other runtimes: what they refuse, one conversion for each model, and the ids of the model that is loaded."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import pytest
import torch

from builders.models import FAMILIES, WINDOW, build, plain_greedy
from builders.runs import entry_of, explain_missing
from methods.ctranslate2 import CTranslate2
from methods.openvino_genai import OpenvinoBatches, OpenvinoGenai
from methods.ort_genai import OrtGenai
from methods.parts import runtime_peer
from methods.parts.runtime_peer import convert, find_cache
from specbench.models.facade import ModelCard, Target
from specbench.models.load import locate, read_tokenizer
from specbench.types import InputError

KINDS = (OrtGenai, OpenvinoGenai, CTranslate2)
PROMPTS = ([5, 6, 7, 5, 6, 7, 5, 6], [11], [9, 8, 7, 6, 5, 4, 3] * 9)
ROWS = ("ort_genai", "ort_genai_lookup", "openvino_genai", "openvino_genai_lookup", "ctranslate2")
SCALED = {
    "theta": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}  # fmt: skip
NARROW = [name for name in FAMILIES if "window" not in name and "mixed" not in name]
BUNDLED = Path(locate("bundled:tiny", "model.path"))


@functools.cache
def tokenizer():
    found = read_tokenizer(str(BUNDLED), "model.tokenizer")
    found.unk_token = found.pad_token  # Mistral's have one, and a converter relies on it
    return found


def card_of(model, dtype: str = "float32", device: str = "cpu") -> ModelCard:
    return ModelCard("m", "random", model.config, tokenizer(), 512, frozenset({2}), dtype, device)


def bound(name: str, model):
    if missing := explain_missing(name):
        pytest.skip(f"the package {missing} is not installed")
    method = entry_of(name).method
    method.check(card_of(model))
    method.bind(Target(card_of(model), model, 64, None))
    return method


def bursts_of(method, prompt: list[int], limit: int) -> list[tuple[list[int], int]]:
    """(ids, proposed) of every report; it ends at the limit, as the harness ends it."""
    found: list[tuple[list[int], int]] = []

    def emit(ids, proposed=0) -> bool:
        found.append((list(ids), proposed))
        stored = [token for each, _ in found for token in each]
        return len(stored) >= limit or 2 in stored

    method.decode(prompt, limit, 0, emit)
    return found


def ids_of(method, prompt: list[int], limit: int = 24) -> list[int]:
    return [token for ids, _ in bursts_of(method, prompt, limit) for token in ids][:limit]


def until_eos(ids: list[int]) -> list[int]:
    return ids[: ids.index(2) + 1] if 2 in ids else ids


def wide(family: str):
    """A random model, as wide as the bundled tokenizer. family: or a kind of rotary angles."""
    model = build("llama" if family in SCALED else family)
    config = model.config
    config.vocab_size = 2048
    config.rope_parameters = SCALED.get(family, config.rope_parameters)
    torch.manual_seed(1)
    return type(model)(config).eval()


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[] if name == "llama" else pytest.mark.exhaustive) for name in (*NARROW, *SCALED)],
)
def test_ids_are_those_of_the_loaded_model(name, family):
    model = wide(family)
    kind = type(entry_of(name).method)
    if model.config.model_type not in kind.families or (
        kind.scalings and family in set(SCALED) - {"theta", *kind.scalings}
    ):
        with pytest.raises(InputError, match=r"its family is phi3|its rotary angles are scaled by"):
            bound(name, model)
        return
    method = bound(name, model)
    for prompt in PROMPTS:
        assert ids_of(method, prompt) == until_eos(plain_greedy(model, prompt, 24))
    method.close()


@pytest.mark.parametrize("name", ["ort_genai_draft", "openvino_genai_draft"])
def test_a_draft_model_that_is_the_target_is_accepted_whole(name):
    if missing := explain_missing(name):
        pytest.skip(f"the package {missing} is not installed")
    from specbench.models.load import load_model, read_card

    card = read_card(path="bundled:tiny", dtype="float32", device="cpu")
    model, method = load_model(card), type(entry_of(name).method)("draft", "bundled:tiny", num_draft=3)
    method.check(card)
    method.bind(Target(card, model, 64, None))
    bursts = bursts_of(method, [5, 6, 7], 16)
    assert {len(ids) for ids, _ in bursts[1:-1]} == {4}
    assert {proposed for _, proposed in bursts[1:-1]} == ({3} if name == "ort_genai_draft" else {0})
    assert method.stats()["draft_tokens_accepted"] >= 9
    method.close()


def test_continuous_batching_answers_as_the_loaded_model():
    pytest.importorskip("openvino_genai")
    model, peer = wide("llama"), OpenvinoBatches()
    peer.bind(Target(card_of(model), model, 64, None))
    prompts = [list(prompt) for prompt in PROMPTS]
    assert peer.answer(prompts, 12) == [plain_greedy(model, prompt, 12) for prompt in prompts]


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_that_is_missing_is_named_with_its_extra(kind, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=rf"{kind.package} is not installed; .*specbench\[{kind.extra}\]"):
        kind().check(card_of(build("llama")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("llama", {"device": "cuda"}, "it is on cuda; expected model.device=cpu"),
        ("llama", {"dtype": "float16"}, "its dtype is float16; expected float32"),
        ("mistral-window", {}, "attend within a window"),
    ],
)
def test_a_model_that_no_runtime_converts_is_refused(kind, family, settings, message, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "here")
    with pytest.raises(InputError, match=f"cannot convert model=m, .*{message}"):
        kind().check(card_of(build(family), **settings))


@pytest.mark.parametrize("kind", KINDS)
def test_another_family_and_a_temperature_are_refused(kind, monkeypatch):
    monkeypatch.setattr(runtime_peer, "explain_unsupported", lambda config: "the family gpt2 is not one of llama")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "here")
    model = build("llama")
    with pytest.raises(InputError, match="cannot convert model=m, the family gpt2 is not one of llama"):
        kind().check(card_of(model))
    with pytest.raises(InputError, match=r"expected decode\.temperature=0"):
        kind().bind(Target(card_of(model), model, 64, lambda logits: logits.softmax(-1)))


def test_a_window_that_no_position_leaves_is_none(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "here")
    model = build("mistral-window")
    assert model.config.sliding_window == WINDOW
    model.config.sliding_window = 512
    CTranslate2().check(card_of(model))


def test_a_model_is_converted_once_and_anew_when_a_weight_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, written = build("llama"), []

    def write(card, given, folder):
        print("noise")
        (folder / "file").write_text("content")
        written.append(folder)

    first = convert(card_of(model), model, "runtime-1", write)
    assert convert(card_of(model), model, "runtime-1", write) == first
    assert (first / "file").read_text() == "content"
    assert len(written) == 1
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-3
    assert convert(card_of(model), model, "runtime-1", write) != first
    model.config.rms_norm_eps *= 2
    convert(card_of(model), model, "runtime-1", write)
    convert(card_of(model), model, "runtime-2", write)
    assert len(written) == 4
    assert not any(folder.exists() for folder in written)


def test_a_conversion_that_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = build("llama")

    def fail(card, given, folder):
        (folder / "half").touch()
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        convert(card_of(model), model, "runtime-1", fail)
    assert [each for each in find_cache().iterdir() if each.is_dir()] == []
