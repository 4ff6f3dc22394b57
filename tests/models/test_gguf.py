"""GGUF files: the weights, ids and prompts are transformers' and the file's own, and what cannot be
computed rightly is refused.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

import specbench.models.gguf
from builders.gguf_files import TINY, write_gguf
from builders.runs import execute_job, run_main
from specbench.commands.runs import main as list_runs
from specbench.input import InputError
from specbench.kept import LIMIT, PLACE, find_place, keep, list_kept
from specbench.models.load import load_model, locate, read_card
from specbench.models.packaged import MODELS
from specbench.records.store import read_manifest

PROMPTS = (
    "Name three birds.",
    "What is 12 plus 345?",
    "a  b   c\n\n 7",
    "Sort these words: hat, drum, saw.",
    "Who are you?",
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))


def test_float_weights_are_the_models_own_bit_for_bit(tmp_path):
    """Against the folder that the file was made from: rotated rows are turned back."""
    folder = locate(str(write_gguf(tmp_path / "tiny.gguf")), "model.path")
    found, own = load_file(f"{folder}/model.safetensors"), load_file(TINY / "model.safetensors")
    assert {*found} == {*own}
    for name, weight in own.items():
        torch.testing.assert_close(found[name], weight.float(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F16"])
def test_blocks_become_the_numbers_that_they_stand_for(tmp_path, kind):
    path = write_gguf(tmp_path / "tiny.gguf", kind)
    folder = locate(str(path), "model.path")
    found = load_file(f"{folder}/model.safetensors")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    for name, own in (
        ("model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
        ("model.embed_tokens.weight", "token_embd.weight"),
    ):
        wanted = gguf.quants.dequantize(stored[own].data, stored[own].tensor_type)
        assert np.array_equal(found[name].numpy(), wanted)


def test_logits_ids_and_prompts_are_those_of_transformers(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", "Q8_0")
    check_against_transformers(path, PROMPTS)


@pytest.mark.slow
def test_the_real_file_is_computed_as_by_transformers(monkeypatch):
    monkeypatch.setenv(PLACE, str(Path.home() / ".cache" / "specbench"))
    [model] = MODELS.values()
    path = find_place() / f"{model.sha256[:16]}-file" / Path(model.file).name
    if not path.is_file():
        pytest.skip("not here: specbench fetch model=smollm2_135m_q4")
    check_against_transformers(path, PROMPTS * 2)


def check_against_transformers(path, prompts):
    options = {"gguf_file": path.name, "local_files_only": True}
    wanted = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **options)
    reader = AutoTokenizer.from_pretrained(path.parent, **options)
    card = read_card(path=str(path))
    found = load_model(card)
    for number, text in enumerate(prompts):
        talk = [{"role": "user", "content": f"{text} ({number})"}]
        ids = card.tokenizer.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
        assert card.tokenizer.decode(ids) == reader.apply_chat_template(
            talk, add_generation_prompt=True, tokenize=False
        )
        given = torch.tensor([ids])
        with torch.inference_mode():
            torch.testing.assert_close(found(given).logits, wanted(given).logits, rtol=0, atol=0)
            options = {"max_new_tokens": 24, "do_sample": False}
            assert torch.equal(found.generate(given, **options), wanted.generate(given, **options))


def test_texts_are_split_as_the_file_says(tmp_path):
    """Each digit by itself, before GPT-2's split: 'a  1' has two spaces in one token. Transformers
    takes GPT-2's alone.
    """
    card = read_card(path=str(write_gguf(tmp_path / "tiny.gguf")))
    stored = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    wanted = Tokenizer(stored.model)
    wanted.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    for text in ("a  12 b", "there're 3 dogs  and\n\n 45 cats", "x=10;\n    y = 2"):
        assert card.tokenizer.encode(text, add_special_tokens=False) == wanted.encode(text).ids


def test_every_end_of_the_file_ends_an_answer(tmp_path):
    """Also one that only its name tells: as in files that have the end of a text alone."""
    more = {"tokenizer.ggml.eot_token_id": 2, "tokenizer.ggml.eom_token_id": 3}
    assert read_card(path=str(write_gguf(tmp_path / "a.gguf"))).eos == {4}
    assert read_card(path=str(write_gguf(tmp_path / "b.gguf", more=more))).eos == {2, 3, 4}
    named = write_gguf(tmp_path / "c.gguf", renamed={"<|user|>": "<|eot_id|>"})
    assert read_card(path=str(named)).eos == {2, 4}


def test_a_file_is_converted_once_and_a_run_names_it(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "My Model.GGUF", "Q8_0")
    (tmp_path / "folder").mkdir()
    other = shutil.copy(path, tmp_path / "folder" / "copy.bin")
    settings = ("suite=mini", "suite.limit=1", "suite.categories=[qa]", "decode.max_new_tokens=8")
    execute_job(
        tmp_path / "run", f"model.path={path}", "method=[pld]", "engine.max_nodes=8", *settings
    )
    about = read_manifest(tmp_path / "run").model
    assert about.name == "my model"
    assert about.gguf is not None
    assert (about.gguf["file"], about.gguf["quantisation"]) == ("My Model.GGUF", "Q8_0")
    monkeypatch.setattr(specbench.models.gguf, "_Conversion", None)
    # the same bytes under another name, found by what they begin with
    assert Path(locate(str(other), "model.path")).name == "My Model"
    [kept] = list_kept()
    assert kept.size > 4 * 3_000_000
    assert "My Model" in run_main(lambda: list_runs(["--cache"])).stdout


def test_the_longest_unused_goes_first_and_a_failed_one_is_not_kept(monkeypatch):
    def fill(folder):
        (folder / "data").write_bytes(b"x" * 400_000)

    monkeypatch.setenv(LIMIT, "0.001")
    for number, name in enumerate(("a", "b")):
        os.utime(keep(name, 400_000, fill, "key"), (number, number))
    keep("c", 400_000, fill, "key")
    assert {each.folder.name for each in list_kept()} == {"b", "c"}
    with pytest.raises(ZeroDivisionError):
        keep("d", 1, lambda folder: 1 / 0, "key")
    assert {each.folder.name for each in list_kept()} == {"b", "c"}
    with pytest.raises(InputError, match=f"key: takes .*{LIMIT} allows 0.001"):
        keep("e", 2_000_000, fill, "key")
    # what is read while room is made stays, though it is the oldest
    os.utime(find_place() / "b", (1, 1))
    keep("f", 400_000, fill, "key", find_place() / "b" / "data")
    assert {each.folder.name for each in list_kept()} == {"b", "f"}
    for wrong in ("nan", "-1", "many"):
        monkeypatch.setenv(LIMIT, wrong)
        with pytest.raises(InputError, match=f"{LIMIT}={wrong}: expected a number"):
            keep("g", 1, fill, "key")


def test_what_cannot_be_computed_rightly_is_refused_by_name(tmp_path):
    scaled = {"llama.rope.scaling.type": "yarn"}
    cases = (
        ({"more": {"llama.rope.scaling.factor": 4}}, "ignores llama.rope.scaling.factor=4"),
        ({"more": {"llama.rope.scale_linear": 4}}, "ignores llama.rope.scale_linear=4"),
        ({"more": {"general.type": "adapter"}}, "general.type=adapter, with a vocabulary"),
        ({"extra": {"rope_freqs.weight": np.ones(16, np.float32)}}, "ignores rope_freqs.weight"),
        ({"more": scaled}, "ignores llama.rope.scaling.type=yarn"),
        ({"extra": {"blk.0.attn_q.bias": np.ones(256, np.float32)}}, "numbers in its tensors"),
        ({"family": "nobody"}, "transformers reads no nobody"),
    )
    for number, (options, message) in enumerate(cases):
        path = write_gguf(tmp_path / f"{number}.gguf", **options)
        with pytest.raises(InputError, match=f"model.path={path}: .*{message}"):
            locate(str(path), "model.path")
    path = write_gguf(tmp_path / "whole.gguf")
    (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:5000])
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(path.read_bytes())
    (tmp_path / "text.gguf").write_text("no")
    for name, message in (
        ("cut.gguf", "not a whole GGUF file"),
        ("m-00001-of-00002.gguf", "--merge"),
        ("text.gguf", "does not begin with GGUF"),
    ):
        with pytest.raises(InputError, match=message):
            locate(str(tmp_path / name), "model.path")
    assert list_kept() == []


def test_an_unknown_split_needs_a_tokenizer(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", pre="chameleon")
    with pytest.raises(InputError, match=r"tokenizer\.ggml\.pre=chameleon.*model\.tokenizer="):
        read_card(path=str(path))
    assert read_card(path=str(path), tokenizer=str(TINY)).eos == {4}


def test_a_file_of_another_form_is_named(tmp_path):
    for name, message in (
        ("model.safetensors", "part of a model; expected its folder"),
        ("pytorch_model.bin", "part of a model; expected its folder"),
        ("model.onnx", "a model of another runtime"),
        ("notes.txt", "a file that is no model"),
    ):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(InputError, match=message):
            locate(str(tmp_path / name), "model.path")
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    save_file({"a": torch.ones(1)}, lora / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"LoRA adapter.*merge_and_unload"):
        read_card(path=str(lora))
    several = tmp_path / "several"
    several.mkdir()
    for name in ("a.gguf", "b.gguf"):
        write_gguf(several / name)
    with pytest.raises(InputError, match=r"2 GGUF files.*model\.gguf=FILE"):
        read_card(path=str(several))
    assert read_card(path=str(several), gguf="b.gguf").name == "b"
