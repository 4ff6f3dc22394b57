"""Start a tensor-parallel target: rank 0 here, every other rank in its own process."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.backends.cuda import cudnn_sdp_enabled, enable_cudnn_sdp
from transformers import AutoModelForCausalLM

from specbench.models.choose import explain_unfused, take_fused
from specbench.models.facade import ModelCard
from specbench.models.fast.attention import AUTO, FastOptions
from specbench.models.fast.core import STANDARD
from specbench.models.fast.graphs import Buckets
from specbench.models.tensor_parallel.engine import Follower, Leader
from specbench.models.tensor_parallel.share import load_share
from specbench.models.tensor_parallel.team import LOST, Ranks, Team, open_store

ATTENTION = "attention"  # of all ranks, a key of their store
PATIENCE_S = 120.0  # for one sum; graphs are recorded and kernels chosen within it


@dataclass(frozen=True, slots=True)
class TeamSettings:
    """The settings that a rank is started with: those of all, then its own."""

    card: ModelCard
    ranks: int
    max_nodes: int
    revision: str | None = None
    safetensors: bool = True
    seed: int = 0
    options: FastOptions = STANDARD
    threads: int | None = None  # of a CPU rank; None = this process's, divided by ranks
    check: bool = False  # compare the ranks after every step
    patience_s: float = PATIENCE_S  # limit of one sum
    buckets: Buckets | None = None
    follower: type[Follower] = Follower  # the engine of the other ranks
    rank: int = 0
    port: int = 0  # of rank 0's store
    device: str = "cpu"  # of this rank
    # see ``enable_cudnn_sdp``; as in the process that starts it
    cudnn: bool = field(default_factory=cudnn_sdp_enabled)

    def load(self) -> Any:
        """Load its share of the model."""
        options: Any = {
            "revision": self.revision,
            "safetensors": self.safetensors,
            "seed": self.seed,
        }
        return load_share(self.card, self.device, self.rank, self.ranks, **options)

    def explain_unfused(self, share: Any) -> str | None:
        """Explain why ``fused`` is not for its share, if the check decides
        (``engine.attention=auto``).
        """
        auto = self.options.attention == AUTO
        return explain_unfused(share, self.card.context, self.max_nodes + 1) if auto else None

    def join(self, store: Any) -> Team:
        """Connect to the other ranks."""
        return Team(store, self.rank, self.ranks, torch.device(self.device), self.patience_s)

    def make_engine(self, kind: Any, share: Any, team: Team, **options: Any) -> Any:
        """Make an engine of class ``kind`` on its share."""
        options |= {
            "team": team,
            "buckets": self.buckets,
            "options": self.options,
            "check": self.check,
        }
        return kind(share, self.card.context, self.card.eos, self.max_nodes, **options)


def start(settings: TeamSettings) -> tuple[Leader, WholeModel, str | None]:
    """The engine of rank 0, the model that methods see, and a note of ``take_fused``.

    With ``auto`` all ranks take ``fused`` if the kernels pass their check on the share of each.
    Raises InputError or TeamError; then no process is left.
    """
    if settings.card.device == "cpu":
        threads = settings.threads or max(1, torch.get_num_threads() // settings.ranks)
        torch.set_num_threads(threads)
        settings = replace(settings, threads=threads)
    store = open_store(0, settings.ranks)
    sent = replace(settings, card=replace(settings.card, tokenizer=None), port=store.port)
    kind, _, first = settings.card.device.partition(":")  # of the run; its other GPUs follow
    devices = [
        kind if kind == "cpu" else f"{kind}:{int(first or 0) + rank}"
        for rank in range(settings.ranks)
    ]
    seats = [replace(sent, rank=rank, device=device) for rank, device in enumerate(devices)]
    ranks = Ranks(follow, seats[1:])
    team = note = None
    try:
        share = seats[0].load()
        reasons = [seats[0].explain_unfused(share), *ranks.await_ready()]
        options = settings.options
        if options.attention == AUTO:
            found = (f"rank {rank}: {reason}" for rank, reason in enumerate(reasons) if reason)
            options, note = take_fused(options, next(found, None))
        store.set(ATTENTION, options.attention)
        team = seats[0].join(store)
        ranks.watch(team)
        engine = replace(seats[0], options=options).make_engine(Leader, share, team, ranks=ranks)
    except BaseException:
        ranks.close(team)
        raise
    return engine, WholeModel(share, settings.card.config, engine), note


def follow(seat: TeamSettings, words: Connection) -> None:
    """The process of one rank; it reports through ``words`` that it is ready, and the error that
    ends it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for rank 0, which ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        if seat.threads:
            torch.set_num_threads(seat.threads)
        enable_cudnn_sdp(seat.cudnn)
        share = seat.load()
        _report(words, "ready", seat.explain_unfused(share) or "")
        store = open_store(seat.port, seat.ranks)
        options = replace(seat.options, attention=store.get(ATTENTION).decode())
        team = seat.join(store)
        replace(seat, options=options).make_engine(seat.follower, share, team).serve()
    except Exception as error:  # the process ends here: rank 0 shows the error to the user
        _report(words, type(error).__name__, str(error))
        os._exit(LOST)  # no clean-up may wait for the other ranks
    team.leave()


def _report(words: Connection, kind: str, text: str) -> None:
    words.send_bytes(json.dumps({"kind": kind, "text": text}).encode())


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(LOST)


class WholeModel:
    """Represents the library's model, which no process has completely; it has only the members
    listed here.
    """

    def __init__(self, share: Any, config: Any, engine: Leader) -> None:
        """share: rank 0's. config: of the whole model."""
        self.config, self.dtype = config, share.dtype
        self._embedding, self._head, self._engine = (
            share.get_input_embeddings(),
            share.get_output_embeddings(),
            engine,
        )

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings, which are complete on every rank."""
        return self._embedding

    def get_output_embeddings(self) -> nn.Module:
        """Return the head, which is complete on rank 0."""
        return self._head

    def parameters(self) -> Iterator[nn.Parameter]:
        """The whole model's, without memory: only their sizes are right."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config)
        return model.parameters()

    def __call__(self, input_ids: Tensor, use_cache: bool = False, logits_to_keep: int = 1) -> Any:
        """Return (rows, 1, V) ``logits`` after the last token of (rows, T) ``input_ids``, each from
        an empty cache.
        """
        return SimpleNamespace(logits=self._engine.logits(input_ids)[:, None])

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the target's {name}: under model.parallel=tensor no process holds the library's"
            " model; expected embed, head and logits of the target, or model.parallel=pipeline"
        )
