"""Mistakes of users on the command line, in the configuration, with models and with names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from bad_input.case import Bad, bad
from bad_input.models import HUGE, copy_tiny


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


LONG = "x" * 300
# Every text of the configuration is checked alike, and so is the directory of the run.
PATHS = ("model.path", "hydra.run.dir")
NUMBERS = (
    bad("measure.price_per_hour=inf", "measure.price_per_hour=inf", "a finite number of at least 0"),
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
    *(bad(f"{key}=/{LONG}", f"{key}=/xxx", "300 bytes", name=f"{key} of 300") for key in PATHS),
    *(bad(f"'{key}=\"a\0b\"'", f"{key}=", "NUL", name=f"{key} with NUL") for key in PATHS),
    *(bad(f"'{key}=\"~nosuch/x\"'", f"{key}=~nosuch/x", "home", name=f"{key} of nobody") for key in PATHS),
    bad("'model.name=\"\ud800\"'", "model.name=", "UTF-8", name="half a character"),
    bad("suite.name=a/b suite.path=null", "a/b"),
    *(
        bad(f"suite.{key}={value}", f"suite.{key}={value}", "whole number of at least 1")
        for key in ("limit", "first", "sample")
        for value in (0, -1)
    ),
    *(bad(f"suite.{key}=[]", f"suite.{key}=[]: expected some names") for key in ("ids", "categories")),
    *(
        bad(f"suite.part='{part}'", f"suite.part={part}: expected k/n")
        for part in ("0/2", "3/2", "1", "half", "1/2/3", "-1/2")
    ),
    bad("suite.seed=a", "suite.seed=a", "Integer"),
    bad("suite.sample=2.5", "suite.sample=2.5", "Integer"),
    bad("suite.shots=-1", "suite.shots=-1: expected a whole number of at least 0"),
    bad("suite.shots=true", "suite.shots=true", "Integer"),
    bad("suite.shots_seed=a", "suite.shots_seed=a", "Integer"),
)

TARGETS = (
    target("os.system", "holds no methods", "PYTHONPATH"),  # and others: tests/runs/test_targets.py
    target("methods.pld.Draft", "subclass of specbench.method.Method"),
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
    bad("method.pld.max_ngram=0", "method.pld.max_ngram=0", "from 1 to 4096"),
    bad("method.pld.rule=latest", "method.pld.rule=latest", "original"),
    bad("method.pld.reset=often", "method.pld.reset=often", "turn, case, category, never"),
    bad("+method.token_recycler.k=3", "method.token_recycler", "_target_"),
    bad("experiment=cacheback_table1 size=small", "size", "+size=small"),
    bad("suite.limit", "suite.limit", "expected SETTING=VALUE"),
    bad("method=[pld", "method=[pld", "expected SETTING=VALUE"),
    bad("suite.path=a=b.jsonl", "suite.path=a=b.jsonl", "in quotes within quotes"),
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
    bad("suite.ids=[nope]", "suite.ids", "nope"),
    bad("suite.order=random", "suite.order=random", "shuffled"),
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
    bad("model.context=2", "model.context=2", "16..4096", "check before a run"),
    bad("model.context=100000", "model.context=100000", "4096"),
    bad("model.template=vicuna", "vicuna", "vicuna_v1.1"),
    bad("~method.vanilla", "method.vanilla", "expected always"),
    bad("+method.vanilla_aa._target_=methods.pld.PromptLookup", "method.vanilla_aa", "another name"),
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
        "contains no weights",
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
