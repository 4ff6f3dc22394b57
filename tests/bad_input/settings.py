"""Mistakes of users on the command line, in the configuration, with models and with names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
PATH_TO_LOG = "run/run.log"
SLURM = "run.shards=2 suite.limit=1 hydra/launcher=submitit_slurm hydra.launcher"


def put_log(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / PATH_TO_LOG).symlink_to("/proc/self/mem")


def option(name: str, content: str | bytes, *words: str) -> Bad:
    """Of a file of settings in a folder of one's own."""
    command = ("--config-dir", "mine", "experiment=x", "hydra.run.dir=run")
    return Bad(
        f"option: {name}", command, ("mine/experiment/x.yaml", *words), {"mine/experiment/x.yaml": content}, 2, False
    )


# Messages of references, of long values, of places and of launchers.
MESSAGES = (
    bad(
        "load=closed 'load.budget=${oc.env:NOPE_X}'", "load.budget", "variable 'NOPE_X' not found", "set what it names"
    ),
    bad("'suite=${nope}'", "suite=${nope}: the reference cannot be resolved"),
    bad("+model=tiny", "+model=...: the group has an option already", "without the plus"),
    bad(f"measure={LONG}", "expected the name of an option", name="option of 300 characters"),
    bad(f"nope={'x' * 100_000}", "nope", name="long word"),
    bad("method=[rest] method.rest.nodes=null", "method.rest.nodes=None: Input should be a valid integer"),
    bad("suite.fields.prompt=x", "suite.fields.prompt=x: is for prompts of your own"),
    bad("model=tiny model.random.family=mistral", "model.random.family=mistral; expected one of them"),
    bad("'model.overrides={rms_norm_eps: -1}'", "model.overrides.rms_norm_eps=-1", "which should be float"),
    bad("--dry-run hydra.run.dir=/etc/hostname", "hydra.run.dir=/etc/hostname: /etc/hostname is not a folder"),
    bad("--dry-run hydra.run.dir=file/x", "file is not a folder", files={"file": ""}),
    bad(f"--dry-run {SLURM}.nodes=-1", "hydra.launcher.nodes is -1"),
    bad(f"--dry-run {SLURM}.cpus_per_task='???'", "hydra.launcher.cpus_per_task", "Missing mandatory value"),
    bad(f"--dry-run '{SLURM.replace(' ', chr(39) + ' ' + chr(39))}.qos=${{nope}}'", "hydra.launcher.qos", "nope"),
    bad("suite.limit=1", "run.log: is made by the kernel", files=put_log, name="log of the kernel"),
    option("number", "3", "Invalid loaded object type: int"),
    option("nested", "[" * 10_000, "not YAML"),
    option("key twice", "a: 1\na: 2", "duplicate key"),
    option("not UTF-8", b"a: \xff", "not UTF-8"),
    option("large", b"#" * (1 << 19), "expected at most"),
)
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
    target("os.system", "contains no methods", "PYTHONPATH"),  # and others: tests/runs/test_targets.py
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

# Settings that were given and do nothing. Each message names what would make it count.
UNLOADED = ("requests=5", "block=4", "ramp=2", "chunk=8", "tokens=64", "budget=score", "slo.ttft_ms=5", "find=slo")
TRACE = {
    "t.jsonl": '{"case": "a", "turns": [{"prompt_ids": [1, 5, 6], "ids": [5, 6, 2], "finish": "eos"}]}\n',
}
REPLAY = "model=replay model.trace=t.jsonl model.tokenizer=bundled:tiny"
SERVER = "model=server model.tokenizer=bundled:tiny method.vanilla.url=http://x method=[]"
NO_EFFECT = "has no effect with"


def idle(given: str, key: str, needs: str, **more: Any) -> Bad:
    """Of one setting. key: the setting that decides. needs: what would make it count."""
    return bad(given, f"{given.split()[-1]}: {NO_EFFECT} {key}", f"it counts with {needs}", **more)


def flagged(flags: str, *words: str, files: dict[str, str] | None = None) -> Bad:
    """Of flags of Hydra's, which stand before the settings."""
    return Bad(flags, (*flags.split(), "method=[pld]", "hydra.run.dir=run"), words, files or {}, 2, False)


IDLE = (
    *(idle(f"load.{each}", "load.kind=one", "load=closed, poisson, constant, gamma or trace") for each in UNLOADED),
    idle("load=closed load.rate=2", "load.kind=closed", "load=poisson"),
    idle("load.times=t.json", "load.kind=one", "load=trace"),
    idle("load=closed load.answers=free", "load.kind=closed", "load=trace"),
    idle("load=closed load.seconds=2", "load.kind=closed", "load=poisson, constant, gamma or trace"),
    idle("load=poisson load.rate=2 load.seconds=3 load.block=8", "load.seconds=3.0", "load.seconds=null"),
    idle("load=closed load.nodes=8", "load.budget=full", "load.budget=equal or score"),
    bad("'load.slo={tpot_ms: 5}'", f"load.slo.tpot_ms=5: {NO_EFFECT} load.kind=one"),
    idle("decode.top_p=0.9", "decode.temperature=0.0", "decode.temperature above 0"),
    idle("decode.top_k=5", "decode.temperature=0.0", "decode.temperature above 0"),
    idle("decode=sample decode.verify=block", "method=[pld,vanilla]", "a method that draws its drafts"),
    idle("decode.length_threshold=0.5", "decode.length=fixed", "decode.length=confidence"),
    idle("decode.length_profile=p", "decode.length=fixed", "decode.length=price"),
    idle("run.shards=1 hydra/launcher=joblib", "run.shards=1", "run.shards=N, or a sweep (-m)"),
    idle("hydra.sweep.dir=s", "hydra.mode=RUN", "a sweep (-m)"),
    idle("hydra.job.chdir=true", "hydra.mode=RUN", "a sweep (-m)"),
    idle("model.revision=main", "model.path=bundled:tiny", "a model or tokenizer of the hub"),
    idle("model=random model.path=bundled:tiny", "model.random={...}", "a model that is not random"),
    idle("model=random model.safetensors=false", "model.random={...}", "a model that is not random"),
    idle("model.draft=bundled:tiny", "method=[pld,vanilla]", "a method that uses it: card, foreign_draft,"),
    idle("model.heads.eagle3=random", "method=[pld,vanilla]", "a method that uses it: eagle3"),
    idle("model.datastore=d", "method=[pld,vanilla]", "a method that uses it: rest"),
    idle("model=tiny model.trace=t.jsonl", "engine.kind=auto", "model=replay", files=TRACE),
    idle("model.check_ranks=true", "model.gpus=None", "model.gpus=N"),
    idle("model.cudnn_attention=true", "model.device=auto", "model.device=cuda"),
    idle("engine=eager engine.attention=triton", "engine.kind=eager", "engine=fast, engine=auto or engine=timed"),
    idle("engine=eager engine.compiled=false", "engine.kind=eager", "engine=fast, engine=auto or engine=timed"),
    idle("report.plots=false report.style=paper", "report.plots=False", "report.plots=true"),
    idle("suite.seed=3", "suite.order=file", "suite.order=shuffled or suite.sample=N"),
    *(idle(f"suite.{each}", "suite.shots=0", "suite.shots=N") for each in ("shots_seed=3", "shots_from=x")),
    *(
        idle(f"suite.{each}", "suite.name=mini", "a suite outside of the package")
        for each in ("home=x", "relative=x", "hub.repo=x/y", "hub.split=x")
    ),
    idle("measure.fresh=true run.retry=true", "measure.fresh=True", "measure.fresh=false"),
    idle("method=[] measure=quick measure.seed=3", "method=[vanilla]", "a method next to vanilla"),
    idle("method=[] decode.length=confidence", "method=[vanilla]", "a method that drafts"),
    idle("suite.path=q.jsonl suite.home=here", "suite.path=q.jsonl", "suite.path=null"),
    idle("load=closed measure.seed=3", "load.kind=closed", "load=one"),
    *(
        idle(f"{REPLAY} {each}", key, needs, files=TRACE)
        for each, key, needs in (
            ("model.dtype=float16", "engine.kind=replay", "another engine than replay"),
            ("model.device=cpu", "engine.kind=replay", "a model that is loaded here"),
            ("model.context=64", "engine.kind=replay", "another engine than replay"),
            ("model.path=bundled:tiny", "engine.kind=replay", "a model that is loaded here"),
            ("model.template=raw", "model.trace=t.jsonl", "a trace of texts"),
            ("engine.compiled=false", "engine.kind=replay", "engine=fast"),
            ("measure.price_per_hour=2", "engine.kind=replay", "another engine than replay"),
            ("suite.frame=x", "suite.format=trace", "a suite of questions"),
        )
    ),
    *(
        idle(f"{SERVER} {each}", "engine.kind=server", needs)
        for each, needs in (
            ("model.path=bundled:tiny", "a model that is loaded here"),
            ("engine.max_nodes=8", "an engine that runs here"),
            ("decode.length=adaedl", "an engine that runs here"),
            ("measure.keep_trees=2", "an engine that runs here"),
            ("load=closed load.chunk=8", "an engine that runs here"),
        )
    ),
    flagged("--config-path /nope", "--config-path: has no effect on a run", "--config-dir adds a folder of options"),
    flagged("--resolve", "--resolve: has no effect on a run", "it counts with --cfg"),
    flagged("--config-dir /nope", "--config-dir /nope", "no such folder"),
    flagged("--config-dir own", "own (hydra.searchpath): has no options, as method/mine.yaml", files={"own/a.txt": ""}),
    bad("hydra.searchpath=[file:///nope]", "--config-dir /nope", "no such folder"),
)
SWITCHES = ("measure.fresh", "measure.control", "report.plots", "run.retry", "model.safetensors", "engine.compiled")
OPTIONS = (
    *(bad(f"{key}={value}", f"{key}={value}: expected true or false") for key in SWITCHES for value in (2, "yes")),
    bad("model.thinking=3", "model.thinking=3: expected true, false or null"),
    bad("method=[card] method.card.correct=2", "method.card.correct=2", "boolean"),
    *(
        bad(f"{group}='{value}'", f"{group}={value}: expected the name of an option", known)
        for group, value, known in (
            *(("method", value, "sam") for value in ("3", "null", "[[pld]]", "[pld,null]", "[3]", "{a: 1}")),
            ("model", "null", "tiny"),
            ("load", "3", "closed"),
            ("experiment", "null", "takeoff_ssd"),
        )
    ),
    bad("model.name='${nope}'", "model.name: Interpolation key 'nope' not found"),
    bad("sute.limit=3", "sute.limit: no such setting; did you mean suite?"),
    bad("model.head.eagle=x", "model.head.eagle: no such setting; did you mean heads?"),
    bad("method.sam.max_ngram=3", "method.sam.max_ngram: the method is not in the run", "method=[sam]"),
    bad("model=replay", "model.trace: not set", "model.trace=FILE"),
    bad("load=poisson", "load.rate: not set; load=poisson needs it"),
    bad("load=trace", "load.times: not set; load=trace needs it"),
    bad("load=constant", "load.rate: not set; load=constant needs it"),
    bad("load=gamma load.rate=2 load.shape=0", "load.shape=0.0: expected at least 0.01"),
)
# Folders that contain other things.
PLACES = tuple(
    bad(f"hydra.run.dir={place}", "hydra.run.dir=", "contains other things (", expected, name=f"in {name}", files=files)
    for name, place, expected, files in (
        ("the root", "/", "bin", {}),
        ("the working directory", ".", "notes.txt", {"notes.txt": "mine"}),
        ("no name", "", "notes.txt", {"notes.txt": "mine"}),
        ("the home", "'\"~\"'", "expected a new folder", {}),
        ("the folder above", "..", "expected a new folder", {}),
        (
            "another program's folder",
            "app",
            "index.html",
            {"app/manifest.json": "{}", "app/index.html": ""},
        ),
    )
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
    bad("hydra.run.dir=file/run", "is not a folder", "hydra.run.dir", files={"file": ""}),
)
