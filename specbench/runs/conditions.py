"""The conditions under which settings of the schema have an effect, by what a run is: its engine, load, methods ...

``specbench.runs.given`` tests them on the settings that were given. run: a ``Composed``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from specbench.input import When, when
from specbench.records.record import EngineKind, Sink
from specbench.serving.settings import ONE

FOLLOWING = (EngineKind.REPLAY, EngineKind.TIMED)  # engines along recorded answers
MAYBE_FAST = (EngineKind.AUTO, EngineKind.FAST, EngineKind.TIMED)


def _loads(run: Any) -> bool:
    return run.engine.kind not in (EngineKind.REPLAY, EngineKind.SERVER)


def _has_path(run: Any) -> bool:
    """Whether ``model.path`` is read: of a replay, only for its tokenizer."""
    return _loads(run) or (run.engine.kind == EngineKind.REPLAY and run.model.tokenizer is None)


def _from_hub(run: Any) -> bool:
    """Whether the model or its tokenizer may be on the hub; a trace may name its tokenizer itself."""
    model = run.model
    read = [model.tokenizer, model.path if _has_path(run) and model.random is None else None]
    places = [os.path.expandvars(each) for each in read if each]
    own = [each for each in places if each.startswith("bundled:") or Path(each).expanduser().exists()]
    return len(own) < len(places) or (run.engine.kind in FOLLOWING and not places)


def _has_texts(run: Any) -> bool:
    """Whether prompts are made from texts: not from records, which have their ids."""
    from specbench.trace import find_trace, kind_of  # brings torch

    trace = run.model.trace
    return run.engine.kind not in FOLLOWING or not trace or kind_of(find_trace(trace)) != "records"


def _on_gpu(run: Any) -> bool:
    import torch  # which --help does without

    device = run.model.device
    return torch.cuda.is_available() if device == "auto" else str(device).startswith("cuda")


LOADS = when("engine.kind", _loads, "a model that is loaded here (engine=auto)")
HAS_PATH = when("engine.kind", _has_path, "a model that is loaded here; others have model.tokenizer")
NOT_RANDOM = when("model.random", lambda run: run.model.random is None, "a model that is not random, as model=hub")
HUB = when("model.path", _from_hub, "a model or tokenizer of the hub, as model.path=OWNER/NAME")
TEXTS = when("model.trace", _has_texts, "a trace of texts, or a model; records have the ids of their prompts")
FOLLOWS = when(
    "engine.kind", lambda run: run.engine.kind in FOLLOWING, "model=replay, or with a model and engine=timed"
)
NO_REPLAY = when("engine.kind", lambda run: run.engine.kind != EngineKind.REPLAY, "another engine than replay")
NO_SERVER = when("engine.kind", lambda run: run.engine.kind != EngineKind.SERVER, "an engine that runs here")
FAST = when("engine.kind", lambda run: run.engine.kind in MAYBE_FAST, "engine=fast, engine=auto or engine=timed")
SEVERAL = when("model.gpus", lambda run: (run.model.gpus or 1) > 1, "model.gpus=N")
RANKS = when("model.parallel", lambda run: run.model.parallel != "pipeline", "model.parallel=tensor")
ON_GPU = when("model.device", _on_gpu, "model.device=cuda")
ON_CPU = when("model.device", lambda run: not _on_gpu(run), "model.device=cpu")
USED = When("method", lambda run, key: key in run.read, "a method that uses it: {users}")
COMPARED = when("method", lambda run: len(run.method) > 1 or run.measure.control, "a method next to vanilla")
DRAFTS = when("method", lambda run: len(run.method) > 1, "a method that drafts, as method=[pld]")
RESUMES = when("measure.fresh", lambda run: not run.measure.fresh, "measure.fresh=false: a new run has no failed block")
DRAWS = when("method", lambda run: run.draws, "a method that draws its drafts, as method=[speculative_sampling]")
SAMPLES = when("decode.temperature", lambda run: run.decode.temperature > 0, "decode.temperature above 0")
BY_CONFIDENCE = when("decode.length", lambda run: run.decode.length == "confidence", "decode.length=confidence")
BY_PRICE = when("decode.length", lambda run: run.decode.length == "price", "decode.length=price")
IN_TURN = when("load.kind", lambda run: run.load.kind == ONE, "load=one")
PLOTTED = when("report.plots", lambda run: run.report.plots, "report.plots=true")
TO_HUB = when("report.to", lambda run: Sink.HUB in run.report.to, "report.to=[hub]")
SWEEP = when("hydra.mode", lambda run: run.sweeps, "a sweep (-m)")
SINGLE = when("hydra.mode", lambda run: not run.sweeps, "a single run; a sweep has hydra.sweep.dir")
WORKERS = when("run.shards", lambda run: run.sweeps or run.run.shards > 1, "run.shards=N, or a sweep (-m)")
