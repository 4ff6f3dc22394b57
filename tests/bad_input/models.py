"""Models that a user can get wrong: their configurations, weights, tokenizers and templates, and random shapes."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bad_input.case import Bad, bad
from safetensors.numpy import load, save

from specbench.runs.config import PACKAGE


def copy_tiny(folder: Path, *leave_out: str) -> Path:
    """The bundled model as ``model``, without the files that have one of these words in their names."""
    copy = folder / "model"
    copy.mkdir()
    for file in (PACKAGE / "assets" / "tiny").iterdir():
        if not any(part in file.name for part in leave_out):
            (copy / file.name).write_bytes(file.read_bytes())
    return copy


def copy_with_pipe(folder: Path) -> None:
    os.mkfifo(copy_tiny(folder, "safetensors") / "model.safetensors")


def model(name: str, *words: str, loads: bool = False, **files: str | bytes | Callable[[bytes], bytes]) -> Bad:
    """Of the bundled model with other files; a name's last underscore is its dot."""

    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        for file in (PACKAGE / "assets" / "tiny").iterdir():
            (folder / "model" / file.name).symlink_to(file)
        for key, content in files.items():
            path = folder / "model" / ".".join(key.rsplit("_", 1))
            content = content(path.read_bytes()) if callable(content) else content
            path.unlink(missing_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return bad("model.path=model", *words, name=f"model: {name}", files=write, loads=loads)


def weights(name: str, content: str | bytes | Callable[[bytes], bytes]) -> Bad:
    return model(f"weights {name}", "model.safetensors is not a complete safetensors file", model_safetensors=content)


def config(*words: str, loads: bool = False, **changes: object) -> Bad:
    """Of the bundled model with other settings in its config.json."""

    def edit(content: bytes) -> bytes:
        return json.dumps(json.loads(content) | changes).encode()

    return model(f"config {changes}", *words, loads=loads, config_json=edit)


def index(name: str, word: str, content: str) -> Bad:
    """Of the bundled model whose weights are in parts, by this index."""

    def write(folder: Path) -> None:
        copy_tiny(folder, "safetensors").joinpath("model.safetensors.index.json").write_text(content)

    return bad("model.path=model", "model.safetensors.index.json", word, name=f"model: index {name}", files=write)


def with_data(content: bytes, byte: bytes) -> bytes:
    """A safetensors file with every byte of its tensors replaced."""
    header = 8 + int.from_bytes(content[:8], "little")
    return content[:header] + byte * (len(content) - header)


def with_bias(content: bytes) -> bytes:
    """A safetensors file with a bias that the bundled model does not have."""
    bias = {"model.layers.0.self_attn.q_proj.bias": np.ones(4, np.float32)}
    return save(load(content) | bias)


def template(value: object, *words: str) -> Bad:
    """Of the bundled model with this chat template."""

    def edit(content: bytes) -> bytes:
        return json.dumps(json.loads(content) | {"chat_template": value}).encode()

    return model(f"chat template {value}", *words, tokenizer_config_json=edit)


def with_limit(value: object) -> Callable[[bytes], bytes]:
    """Of a tokenizer's configuration: with this length."""
    return lambda content: json.dumps(json.loads(content) | {"model_max_length": value}).encode()


def shape(*words: str, **changes: object) -> Bad:
    """Of a random model of this shape."""
    given = " ".join(f"++model.random.config.{key}={value}" for key, value in changes.items())
    return bad(f"model=random {given}", "model.random.config", *words)


HUGE = 10**12


def of_kernel(words: str, name: str, source: str) -> Bad:
    """A file that is a link to one of the kernel."""
    return bad(
        words,
        f"{name}: is made by the kernel",
        name=f"of the kernel: {name}",
        files=lambda folder: (folder / name).symlink_to(source),
    )


MODELS = (
    weights("empty", ""),
    weights("text", "hello world\n" * 50),
    weights("random", random.Random(0).randbytes(5000)),
    weights("zeros", bytes(1000)),
    weights("truncated", lambda content: content[: len(content) // 2]),
    weights("too long", lambda content: content + b"more"),
    weights("header alone", lambda content: content[: 8 + int.from_bytes(content[:8], "little")]),
    weights("huge header", lambda content: (1 << 60).to_bytes(8, "little") + content[8:]),
    config("embed_tokens.weight", "[2048, 256]", "[2048, 128]", loads=True, hidden_size=128),
    config("embed_tokens.weight", "[9000, 256]", loads=True, vocab_size=9000),
    config("2048 tokens", "100", vocab_size=100),
    config("no file holds", "model.layers.5", loads=True, num_hidden_layers=9),
    config("num_hidden_layers=1000000000000", "10000", num_hidden_layers=HUGE),
    config("num_hidden_layers=-3", num_hidden_layers=-3),
    config("GB", "float32", hidden_size=1 << 24, num_attention_heads=1 << 17),
    config("model.context=1000000000000", "16..16777216", max_position_embeddings=HUGE),
    config("model configuration", "nope", model_type="nope"),
    config("hidden_size", hidden_size="wide"),
    config("vocab_size is -5", vocab_size=-5),
    config("eos_token_id is 99999999", "0 to 2047", eos_token_id=99999999),
    config("eos_token_id is -5", "0 to 2047", eos_token_id=-5),
    config("eos_token_id is 2048", eos_token_id=[4, 2048]),
    config("pad_token_id=-5", pad_token_id=-5),
    config("rms_norm_eps is 1e+30", "less than or equal to 0.1", rms_norm_eps=1e30),
    config("rms_norm_eps is -1.0", rms_norm_eps=-1.0),
    config("rms_norm_eps is nan", rms_norm_eps=float("nan")),
    config("rope_parameters.rope_theta is -1.0", rope_parameters={"rope_type": "default", "rope_theta": -1.0}),
    *(
        config("rope_parameters.factor is ", rope_scaling={"rope_type": kind, "factor": factor})
        for kind, factor in (("linear", -3), ("linear", 0), ("dynamic", 1e30))
    ),
    config("takes no text_config", text_config=[1]),
    config("takes no text_config", text_config={"a": 1}),
    model("tokenizer list of nothing", "model.tokenizer=model", tokenizer_config_json='{"auto_map": []}'),
    config("head_dim is -32", head_dim=-32),
    *(
        bad(f"'model.overrides={{{entry}}}'", "model.overrides: ", word)
        for entry, word in (
            ("eos_token_id: 99999999", "eos_token_id is 99999999"),
            ("eos_token_id: -5", "eos_token_id is -5"),
            ("rms_norm_eps: 1e30", "rms_norm_eps is 1e+30"),
            ("rope_parameters: {rope_type: linear, factor: -3}", "rope_parameters.factor is -3"),
        )
    ),
    config("num_key_value_heads", "divisor", num_attention_heads=8, num_key_value_heads=3),
    model("config text", "config.json is not JSON", config_json="hello"),
    model("config empty", "config.json is not JSON", config_json=""),
    model("config deep", "config.json is not JSON", config_json="[" * 100_000),
    model("config list", "config.json holds a list", config_json="[1]"),
    model("config nothing", "model_type", config_json="{}"),
    model("config not UTF-8", "config.json is not JSON", config_json=b"\xff{}"),
    model("tokenizer text", "model.tokenizer=model", "no tokenizer", tokenizer_json="hello"),
    model("tokenizer list", "model.tokenizer=model", "no tokenizer", tokenizer_json="[]"),
    model("tokenizer config text", "model.tokenizer=model", tokenizer_config_json="hello"),
    model("generation config text", "generation_config.json", generation_config_json="hello"),
    model("end of an answer", "eos_token_id", "'abc'", generation_config_json='{"eos_token_id": "abc"}'),
    model(
        "end of an answer in a list of lists", "eos_token_id", "[1]", generation_config_json='{"eos_token_id": [[1]]}'
    ),
    model("tokenizer deep", "model.tokenizer=model", "recursion", tokenizer_json="[" * 100_000),
    config("model.context", "own limit is 1 ", max_position_embeddings=1),
    config("num_hidden_layers=1", "model.layers.1.", loads=True, num_hidden_layers=1),
    config("pad_token_id=10000000", "2048", pad_token_id=10**7),
    config("head_dim is 0", "greater than or equal to 1", head_dim=0),
    config("hidden_act=zzz: unknown", loads=True, hidden_act="zzz"),
    config("rope_type=zzz: unknown", loads=True, rope_parameters={"rope_type": "zzz"}),
    config("rms_norm_eps is -1, which should be float", rms_norm_eps=-1),
    config("bos_token_id", "int", "'x'", bos_token_id="x"),
    config("pad_token_id is 1.5, which should be int or null", pad_token_id=1.5),
    config("rope_parameters.rope_theta is {}", rope_parameters={"rope_type": "default", "rope_theta": {}}),
    config("an entry has a value of a wrong type", dtype="abc"),
    bad("'model.overrides={hidden_size: 12}'", "model.overrides.hidden_size=12: ", "not a multiple"),
    bad("'model.overrides={tie_word_embeddings: 3}'", "model.overrides.tie_word_embeddings=3: ", "should be bool"),
    bad("'model.overrides={dtype: nan}'", "model.overrides.dtype=nan: "),
    model("tokenizer number", "model.tokenizer=model", "no tokenizer", tokenizer_json='{"version": [1]}'),
    model("tokenizer class", "wrong type", tokenizer_config_json='{"tokenizer_class": {"a": 1}}'),
    of_kernel("method=[cacheback] model.frozen_table=x.safetensors", "x.safetensors", "/proc/self/mem"),
    index("list", "it is []", "[]"),
    index("of a list", "weight_map is [1]", '{"metadata": {}, "weight_map": [1]}'),
    index("without metadata", "metadata is missing", '{"weight_map": {}}'),
    index("text", "not JSON", "hello"),
    index("of no file", "names nope", '{"metadata": {}, "weight_map": {"a": "nope.safetensors"}}'),
    index("of a file elsewhere", "names ../q", '{"metadata": {}, "weight_map": {"a": "../q"}}'),
    bad("model.path=model", "model.safetensors: is a pipe", name="model: weights pipe", files=copy_with_pipe),
    model("weights of a bias", "layers.0.self_attn.q_proj.bias", loads=True, model_safetensors=with_bias),
    model("weights NaN", "not finite", loads=True, model_safetensors=lambda content: with_data(content, b"\xff")),
    model("weights of zeros", "all equal", loads=True, model_safetensors=lambda content: with_data(content, b"\0")),
    template("{% for each in range(10**12) %}{% endfor %}", "refused the conversation", "Range too big"),
    model("config key twice", "has 'vocab_size' twice", config_json='{"vocab_size": 1, "vocab_size": 2}'),
    of_kernel("model.template=t.jinja", "t.jinja", "/proc/kmsg"),
    bad(
        "model.path=model",
        "is made by the kernel",
        name="model: a text of the kernel",
        files=lambda folder: (copy_tiny(folder) / "merges.txt").symlink_to("/proc/kmsg"),
    ),
    bad(
        "model.tokenizer=model",
        "merges.txt: is a pipe",
        name="tokenizer: a pipe",
        files=lambda folder: os.mkfifo(copy_tiny(folder) / "merges.txt"),
    ),
    bad(
        "method=[eagle] model.heads.eagle=head",
        "not JSON",
        name="head: deep",
        files={"head/config.json": "[" * 100_000},
    ),
    bad(
        "'model.random={family: llama, config: {vocab_size: 2048}}'",
        "model.path=bundled:tiny: and model.random.family=llama; expected one of them",
        name="random and a path",
    ),
    bad("'model.random={seed: 3}' model.path=null", "model.random.family=None"),
    bad("model=tiny model.random.seed=3", "model.random.seed=3; expected one of them"),
    bad("'model.random={family: llama, config: 7}' model.path=null", "model.random.config=7", "vocab_size"),
    *(
        model(f"tokenizer limit {value}", "model_max_length is ", tokenizer_config_json=with_limit(value))
        for value in ("long", -5)
    ),
    template("{% break %}", "refused the conversation", "break"),
    template(3, "refused the conversation"),
    bad("model.template=nope", "model.template=nope", "conv_templates"),
    bad("'model.overrides={max_positions: 64}'", "model.overrides.max_positions", "no such entry"),
    bad("model=random 'model.overrides={vocab_size: 64}'", "model.overrides", "model.random.config"),
    shape("num_hidden_layers=1000000", num_hidden_layers=10**6),
    shape("num_hidden_layers=1000000000000", num_hidden_layers=HUGE),
    shape("num_hidden_layers=0", num_hidden_layers=0),
    shape("GB", hidden_size=1 << 20, intermediate_size=1 << 22),
    shape("GB", vocab_size=HUGE),
    shape("GB", intermediate_size=HUGE),
    shape("vocab_size is -5", vocab_size=-5),
    shape("hidden_size is 0", hidden_size=0),
    shape("num_key_value_heads is 0", num_key_value_heads=0),
    shape("num_key_value_heads=3", num_key_value_heads=3),
    shape(num_attention_heads=0),
    shape("initializer_range", initializer_range=-1),
    shape(head_dim=7),
    *(
        bad(f"method=[{name}] model.{key}=table.safetensors", "table.safetensors", files={"table.safetensors": "hello"})
        for name, key in (("cacheback", "frozen_table"), ("rest", "datastore"))
    ),
    bad("method=[sam] method.sam.static=table", "method.sam.static=table", files={"table": "hello"}),
    bad("method=[eagle] model.heads.eagle=head", "method.eagle.head=head", files={"head/config.json": "hello"}),
)
