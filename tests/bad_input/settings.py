"""What a user can get wrong on the command line, in the configuration, with models and with names."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from bad_input.case import Bad, bad

from specbench import cli


def copy_tiny(folder: Path, *leave_out: str) -> Path:
    """The bundled model as ``model``, without the files that have one of these words in their names."""
    copy = folder / "model"
    copy.mkdir()
    for file in (cli.PACKAGE / "assets" / "tiny").iterdir():
        if not any(part in file.name for part in leave_out):
            (copy / file.name).write_bytes(file.read_bytes())
    return copy


def copy_of(*leave_out: str) -> Callable[[Path], Path]:
    return lambda folder: copy_tiny(folder, *leave_out)


def copy_with_torch_weights(folder: Path) -> None:
    (copy_tiny(folder, "safetensors") / "pytorch_model.bin").write_bytes(b"x")


def copy_with_swapped_words(folder: Path) -> None:
    path = copy_tiny(folder) / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    words = tokenizer["model"]["vocab"]
    first, second = list(words)[300:302]
    words[first], words[second] = words[second], words[first]
    path.write_text(json.dumps(tokenizer))


def target(name: str, *words: str) -> Bad:
    """Of a method whose ``_target_`` is not a method."""
    return bad(f"+method.x._target_={name}", f"method.x._target_={name}", *words)


def model(name: str, *words: str, loads: bool = False, **files: str | bytes | Callable[[bytes], bytes]) -> Bad:
    """Of the bundled model with other files; a name's last underscore is its dot."""

    def write(folder: Path) -> None:
        (folder / "model").mkdir()
        for file in (cli.PACKAGE / "assets" / "tiny").iterdir():
            (folder / "model" / file.name).symlink_to(file)
        for key, content in files.items():
            path = folder / "model" / ".".join(key.rsplit("_", 1))
            content = content(path.read_bytes()) if callable(content) else content
            path.unlink(missing_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return bad("model.path=model", *words, name=f"model: {name}", files=write, loads=loads)


def weights(name: str, content: str | bytes | Callable[[bytes], bytes]) -> Bad:
    return model(f"weights {name}", "model.safetensors is no complete safetensors file", model_safetensors=content)


def config(*words: str, loads: bool = False, **changes: object) -> Bad:
    """Of the bundled model with other settings in its config.json."""

    def edit(content: bytes) -> bytes:
        return json.dumps(json.loads(content) | changes).encode()

    return model(f"config {changes}", *words, loads=loads, config_json=edit)


def shape(*words: str, **changes: object) -> Bad:
    """Of a random model of this shape."""
    given = " ".join(f"++model.random.config.{key}={value}" for key, value in changes.items())
    return bad(f"model=random {given}", "model.random.config", *words)


HUGE = 10**12
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
    config("model.context=1000000000000", "2..16777216", max_position_embeddings=HUGE),
    config("model configuration", "nope", model_type="nope"),
    config("hidden_size", hidden_size="wide"),
    config("vocab_size=-5", vocab_size=-5),
    config("num_key_value_heads", "divisor", num_attention_heads=8, num_key_value_heads=3),
    model("config text", "config.json is no JSON", config_json="hello"),
    model("config empty", "config.json is no JSON", config_json=""),
    model("config deep", "config.json is no JSON", config_json="[" * 100_000),
    model("config list", "config.json holds a list", config_json="[1]"),
    model("config nothing", "model_type", config_json="{}"),
    model("config not UTF-8", "config.json is no JSON", config_json=b"\xff{}"),
    model("tokenizer text", "model.tokenizer=model", "no tokenizer", tokenizer_json="hello"),
    model("tokenizer list", "model.tokenizer=model", "no tokenizer", tokenizer_json="[]"),
    model("tokenizer config text", "model.tokenizer=model", tokenizer_config_json="hello"),
    model("generation config text", "generation_config.json", generation_config_json="hello"),
    model("end of an answer", "eos_token_id", "'abc'", generation_config_json='{"eos_token_id": "abc"}'),
    shape("num_hidden_layers=1000000", num_hidden_layers=10**6),
    shape("num_hidden_layers=1000000000000", num_hidden_layers=HUGE),
    shape("num_hidden_layers=0", num_hidden_layers=0),
    shape("GB", hidden_size=1 << 20, intermediate_size=1 << 22),
    shape("GB", vocab_size=HUGE),
    shape("GB", intermediate_size=HUGE),
    shape("vocab_size=-5", vocab_size=-5),
    shape("hidden_size=0", hidden_size=0),
    shape("num_key_value_heads=0", num_key_value_heads=0),
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

LONG = "x" * 300
PATHS = (
    "model.path",
    "model.tokenizer",
    "model.draft",
    "model.datastore",
    "model.trace",
    "suite.path",
    "hydra.run.dir",
)
NUMBERS = (
    bad("measure.rounds=100000000", "measure.rounds=100000000", "at most 10000"),
    bad("measure.warmup=1000000000", "measure.warmup=1000000000", "at most 10000"),
    bad(
        "measure.rounds=10000 suite.path=q",
        "measure.rounds=10000",
        "1010000 blocks",
        files={
            "q": "".join(f'{{"question_id": {number}, "category": "qa", "turns": ["a"]}}\n' for number in range(101))
        },
    ),
    bad("model.threads=1000000", "model.threads=1000000", "at most 1024"),
    bad("model.threads=1099511627776", "model.threads=1099511627776"),
    bad(f"decode.max_new_tokens={10**30}", "decode.max_new_tokens"),
    bad(f"decode.top_k={HUGE} decode.temperature=1", "decode.top_k"),
    bad(f"decode.seed={10**30}", "decode.seed"),
    bad(f"model=random model.random.seed={1 << 70}", "model.random.seed"),
    bad(f"engine.max_nodes={HUGE}", "engine.max_nodes", "at most 4096"),
    bad(f"model.context={10**30}", "model.context"),
    bad("model.gpus=-1", "model.gpus=-1"),
    bad("model.device=cuda:99999999999999999999", "model.device"),
    *(bad(f"{key}=/{LONG}", f"{key}=/xxx", "300 bytes", name=f"{key} of 300") for key in (*PATHS, "model.name")),
    *(bad(f"'{key}=\"a\0b\"'", f"{key}=", "NUL", name=f"{key} with NUL") for key in (*PATHS, "model.name")),
    *(bad(f"'{key}=\"~nosuch/x\"'", f"{key}=~nosuch/x", "home", name=f"{key} of nobody") for key in PATHS),
    bad("'model.name=\"\ud800\"'", "model.name=", "UTF-8", name="half a character"),
    bad("suite.name=a/b suite.path=null", "a/b"),
)

NO_METHODS = """
os.system posix.system subprocess.Popen builtins.eval shutil.rmtree runpy.run_path antigravity.geohash
pkgutil.resolve_name transformers.AutoModelForCausalLM torch.load __main__.main numpy:fromfile
"""

TARGETS = (
    *(target(name, "holds no methods", "PYTHONPATH") for name in NO_METHODS.split()),
    target("nowhere.Method", "cannot be imported", "No module named 'nowhere'"),
    target("methods.nowhere.Method", "cannot be imported"),
    target("methods.pld.Nothing", "cannot be imported"),
    target("methods..pld", "cannot be imported"),
    target("methods", "subclass of specbench.method.Method"),
    target("methods.pld.Draft", "subclass of specbench.method.Method"),
    target("methods.pld.Draft.chain", "subclass of specbench.method.Method"),
    target("methods.pld.Method", "with all that it requires"),
    bad("+method.x._target_=[os.system]", "method.x._target_=['os.system']", "cannot be imported"),
    bad("method=[hybrid] +method.hybrid.members.x._target_=os.system", "method.hybrid.members.x._target_=os.system"),
    bad(
        "hydra.mode=MULTIRUN +hydra.callbacks.x._target_=os.system", "hydra.callbacks.x._target_=os.system", "launcher"
    ),
    bad("hydra.mode=MULTIRUN +hydra.callbacks.x.y._target_=webbrowser.open", "hydra.callbacks.x.y._target_"),
    bad("hydra.mode=MULTIRUN hydra.sweeper._target_=os.system", "hydra.sweeper._target_=os.system"),
    bad("hydra.mode=MULTIRUN hydra.launcher._target_=subprocess.run", "hydra.launcher._target_=subprocess.run"),
    bad("hydra.mode=MULTIRUN +hydra.launcher.x._target_=hydra.utils.call", "hydra.launcher.x._target_"),
    bad(
        "hydra.mode=MULTIRUN hydra.hydra_logging.handlers.console.class=os.system",
        "hydra.hydra_logging.handlers.console.class",
    ),
)

SETTINGS = (
    bad("method=[pdl]", "method=pdl", "did you mean pld?"),
    bad("model=vicuna_8b", "model=vicuna_8b", "did you mean vicuna_7b?"),
    bad("suite=specbench", "suite=specbench", "did you mean spec_bench?"),
    bad("method.pld.max_ngrams=3", "max_ngrams", "did you mean max_ngram?"),
    bad("+method.pld.max_ngrams=3", "method.pld.max_ngrams", "did you mean max_ngram?"),
    bad("method.pld.max_ngram=three", "method.pld.max_ngram=three", "integer"),
    bad("method.pld.max_ngram=2.5", "method.pld.max_ngram=2.5", "integer"),
    bad("method.pld.max_ngram=0", "method.pld.max_ngram=0", "at least 1"),
    bad("method.pld.rule=latest", "method.pld.rule=latest", "original"),
    bad("method.pld.reset=often", "method.pld.reset=often", "turn, case, category, never"),
    bad("+method.token_recycler.k=3", "method.token_recycler", "_target_"),
    bad("experiment=cacheback_table1 size=small", "size", "+size=small"),
    bad("decode.temprature=1", "decode.temprature", "did you mean temperature?"),
    bad("+decode.temprature=1", "decode.temprature", "did you mean temperature?"),
    bad("+seeed=1", "seeed"),
    bad("decode.temperature=hot", "decode.temperature=hot", "Float"),
    bad("decode.temperature=-1", "decode.temperature=-1.0", "at least 0"),
    bad("decode.temperature=nan", "decode.temperature=nan"),
    bad("decode.temperature=1e-40", "decode.temperature=1e-40", "at least 0.001"),
    bad("decode.top_p=nan decode.temperature=1", "decode.top_p=nan"),
    bad("model=random model.random.config.num_attention_heads=7", "model.random.config"),
    bad("model=random model.random.config.hidden_size=abc", "model.random.config"),
    bad("decode.top_p=1.5", "decode.top_p=1.5", "at most 1"),
    bad("decode.max_new_tokens=0", "decode.max_new_tokens=0", "at least 1"),
    bad("decode.max_new_tokens=1.5", "max_new_tokens", "1.5"),
    bad("measure.rounds=0", "measure.rounds=0"),
    bad("engine.kind=fast2", "engine.kind=fast2", "eager"),
    bad("suite.categories=[poetry]", "suite.categories", "poetry", "translation"),
    bad("suite.limit=0", "suite.limit=0"),
    bad("suite.ids=[nope]", "suite.ids", "nope"),
    bad("suite.order=random", "suite.order='random'", "shuffled"),
    bad("suite.path=/nowhere/question.jsonl", "/nowhere/question.jsonl"),
    bad("model.path=/nowhere/model", "model.path=/nowhere/model", "no such folder"),
    bad("model.path=bundled:huge", "bundled:huge", "tiny"),
    bad("model.path=no/such-model", "model.path=no/such-model"),
    bad("model.dtype=float8", "model.dtype=float8", "bfloat16"),
    bad("model.attention=flash", "model.attention=flash", "sdpa"),
    bad("model.gpus=4", "model.gpus=4", "this machine has 0"),
    bad("model.gpus=5", "model.gpus=5", "1 to 4"),
    bad("model.device=cuda:0", "model.device=cuda:0", "this machine has 0"),
    bad("model.device=tpu", "model.device=tpu", "cpu"),
    bad("model.context=100000", "model.context=100000", "4096"),
    bad("model.template=vicuna", "vicuna", "vicuna_v1.1"),
    bad("~method.vanilla", "method.vanilla", "expected always"),
    bad("model=hub", "model.path: not set"),
    bad("suite=file", "suite.path: not set"),
    bad("model=random model.random.family=lama", "model.random.family=lama", "llama"),
    bad("model.threads=0", "model.threads=0"),
    bad("method=[speculative_sampling] method.speculative_sampling.draft=null", "draft", "not set"),
    bad(
        "method=[speculative_sampling] method.speculative_sampling.draft=/nowhere/draft",
        "method.speculative_sampling.draft=/nowhere/draft",
        "no such folder",
    ),
    bad(
        "method=[hf_assisted] method.hf_assisted.draft=bundled:small",
        "method.hf_assisted.draft=bundled:small",
        "tiny_draft",
    ),
    bad("method=[speculative_sampling] method.speculative_sampling.length=0", "speculative_sampling.length=0"),
    bad(
        "model.path=model",
        "holds no weights",
        "safetensors",
        name="model without weights",
        files=copy_of("safetensors"),
    ),
    bad(
        "model.path=model",
        "model.safetensors=false",
        name="model with torch weights only",
        files=copy_with_torch_weights,
    ),
    bad("model.path=model", "tokenizer", name="model without tokenizer", files=copy_of("tokenizer")),
    bad(
        "method=[speculative_sampling] method.speculative_sampling.draft=model",
        "another vocabulary",
        files=copy_with_swapped_words,
    ),
    bad("hydra.run.dir=file/run", "not writable", "hydra.run.dir", files={"file": ""}),
)
