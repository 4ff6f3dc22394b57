"""The ranks of one tensor-parallel model: sums on the devices, messages between the hosts, and the
other processes.

Sums run over NCCL on GPUs and over gloo on CPUs, and time out. Rank 0 sends a message from host to
host before each piece of work, an operation and lists of numbers: which tokens are fed, their
positions, and what was accepted. A follower waits for messages without limit and decides nothing.
In the debug mode the ranks compare six numbers after every step (``RankLog``). Rank 0 watches the
sentinel of every process in its own thread, and each rank watches rank 0's. So no process of a run
outlives it, and no rank waits for one that has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from enum import IntEnum, auto
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

from specbench.types import InputError


class Op(IntEnum):
    """The kinds of messages. Each line names the lists of numbers that follow."""

    STOP = auto()  # no list: the run ends
    RESERVE = auto()  # (tokens)
    PREPARE = auto()  # (greedy, rows), taps
    READ = auto()  # ids of a prompt, taps
    # (cached tokens, root, width, rows), taps, accepted rows of the last step to move, tokens,
    # parents
    STEP = auto()
    LOGITS = auto()  # (length), ids of sequences of that length, each read from an empty cache
    BATCH = auto()  # (requests, tokens)
    # (rows whose logits are wanted), taps, cached tokens of all places, places, row counts, ids,
    # parents
    FEED = auto()
    MOVE = auto()  # places, source slots, target slots
    WIPE = auto()  # (place)
    END = auto()  # no list: the batch ends


# numbers that a message's first broadcast has; a step's draft fits, a prompt takes a second one
PACKET = 1024
HOST = "127.0.0.1"  # all ranks are on one machine
START = timedelta(minutes=30)  # for the ranks to connect
IDLE = timedelta(days=30)  # a follower waits for work; it ends with its parent, not by this


class TeamError(RuntimeError):
    """A rank of the model is lost, stuck or differs from rank 0: the run ends, and the message
    names the rank.
    """


class BrokenError(RuntimeError):
    """An exchange between ranks failed or timed out; ``Ranks.explain`` finds the reason."""


@contextlib.contextmanager
def _exchange() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        # without the library's own path
        raise BrokenError(str(error).splitlines()[0].rpartition("] ")[2]) from error


def open_store(port: int, ranks: int) -> Any:
    """The store through which ranks connect. port: 0 = this is rank 0, which takes a free one
    (``.port``).
    """
    return dist.TCPStore(
        HOST, port, ranks, is_master=port == 0, timeout=START, wait_for_workers=False
    )


class Team:
    """One rank's view. The process must not be part of another group of torch's."""

    def __init__(
        self, store: Any, rank: int, ranks: int, device: torch.device, patience_s: float
    ) -> None:
        """Connect; returns when all ranks have. patience_s: limit of one exchange; followers wait
        without limit.
        """
        if dist.is_initialized():
            raise TeamError(
                "torch's process group is in use in this process; expected one run at a time, no"
                " torchrun"
            )
        self.rank, self.ranks, self.device = rank, ranks, device
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=START)
        patience = timedelta(seconds=patience_s)
        self._hosts = dist.new_group(backend="gloo", timeout=IDLE if rank else patience)
        self._sums = dist.new_group(backend="nccl" if on_gpu else "gloo", timeout=patience)

    def add_up(self, part: Tensor) -> Tensor:
        """The sum of every rank's ``part``, in its place."""
        with _exchange():
            dist.all_reduce(part, group=self._sums)
        return part

    def send(self, op: Op, *lists: Iterable[int], wait: bool = True) -> None:
        """Rank 0: send a message. wait: False for the last message, which may have no receiver."""
        parts = [list(each) for each in lists]
        numbers = torch.tensor(
            [op, len(parts), *map(len, parts), *chain(*parts)], dtype=torch.int64
        )
        packet = torch.zeros(PACKET, dtype=torch.int64)
        packet[0] = len(numbers)
        packet[1 : 1 + len(numbers)] = numbers[: PACKET - 1]
        with _exchange():
            dist.broadcast(packet, 0, group=self._hosts, async_op=not wait)
            if len(numbers) >= PACKET:
                dist.broadcast(numbers[PACKET - 1 :], 0, group=self._hosts)

    def receive(self) -> tuple[Op, list[list[int]]]:
        """The others: wait for a message; returns its kind and lists."""
        packet = torch.empty(PACKET, dtype=torch.int64)
        with _exchange():
            dist.broadcast(packet, 0, group=self._hosts)
            numbers = packet[1 : 1 + int(packet[0])]
            if (left := int(packet[0]) - len(numbers)) > 0:
                rest = torch.empty(left, dtype=torch.int64)
                dist.broadcast(rest, 0, group=self._hosts)
                numbers = torch.cat([numbers, rest])
        op, count, *values = numbers.tolist()
        given = iter(values[count:])
        return Op(op), [list(islice(given, length)) for length in values[:count]]

    def gather(self, values: Tensor) -> list[Tensor]:
        """Every rank's ``values`` (n,) on the host, in order of rank."""
        found = [torch.empty_like(values) for _ in range(self.ranks)]
        with _exchange():
            dist.all_gather(found, values, group=self._hosts)
        return found

    def abort(self) -> None:
        """End a wait on the device for a rank that is gone; gloo ends its own waits."""
        if self.device.type == "cuda":
            group: Any = self._sums
            group.abort()

    def leave(self) -> None:
        """Leave the process group without waiting for the others."""
        if dist.is_initialized():
            dist.destroy_process_group()


class Summed:
    """A linear map whose input is spread over the ranks: every rank's product, then their sum."""

    def __init__(
        self, linear: Callable[[Tensor], Tensor], add_up: Callable[[Tensor], Tensor]
    ) -> None:
        self._linear, self._add_up = linear, add_up

    def __call__(self, rows: Tensor) -> Tensor:
        """(rows, in / ranks) -> (rows, out), the same on every rank."""
        return self._add_up(self._linear(rows))


NAMES = (
    "steps taken",
    "tokens cached",
    "rows fed",
    "keys read",
    "tokens in the cache",
    "hidden states",
)
# Relative difference of the states' sizes. They come out of one sum, but what follows it may round
# in another order where memory is aligned otherwise.
NEAR = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}


class RankLog:
    """The log of one rank: the token in each slot by its own writes and moves, and the number of
    steps.

    Keys and values differ between ranks by design; the slots' tokens and the states after the last
    sum do not.
    """

    def __init__(self, slots: int) -> None:
        """slots: of the cache at first."""
        self._tokens = np.full(slots, -1, dtype=np.int64)
        self._steps = 0

    def enter(self, start: int, ids: Tensor | Sequence[int]) -> None:
        """Tokens went into the slots from ``start`` on."""
        values = torch.as_tensor(ids).cpu().numpy()
        if start + len(values) > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.full(start + len(values), -1)])
        self._tokens[start : start + len(values)] = values

    def move(self, sources: np.ndarray, targets: np.ndarray) -> None:
        """Slots (m,) int64 were moved to others, in one operation."""
        self._tokens[targets] = self._tokens[sources]

    def move_behind(self, start: int, rows: Sequence[int]) -> None:
        """Rows of the frame that began in slot ``start`` were moved next to its root."""
        self.move(np.array(rows, dtype=np.int64) + start, np.arange(1, len(rows) + 1) + start)

    def close_step(self, past: int, width: int, length: int, slots: int, states: Tensor) -> Tensor:
        """(6,) float64, see ``NAMES``. slots: how many of the first are compared. states: (n, D) of
        the rows fed.
        """
        self._steps += 1
        tokens = zlib.crc32(self._tokens[:slots].tobytes())
        total = states.double().abs().sum().item()
        return torch.tensor([self._steps, past, width, length, tokens, total], dtype=torch.float64)


def require_equal_steps(steps: Sequence[Tensor], dtype: torch.dtype) -> None:
    """Raise TeamError where a rank's step is not rank 0's. steps: (6,) of each rank. dtype: of the
    states.
    """
    first = steps[0]
    for rank, step in enumerate(steps[1:], start=1):
        same = step == first
        same[-1] = torch.isclose(step[-1], first[-1], rtol=NEAR[dtype], atol=0, equal_nan=True)
        if not bool(same.all()):
            place = int((~same).nonzero()[0])
            raise TeamError(
                f"rank {rank} diverged from rank 0 at step {int(first[0])} of this run, in its"
                f" {NAMES[place]}: {step[place].item():.17g}, rank 0 has {first[place].item():.17g}"
            )


GRACE_S = 5.0  # for a process to end, and for its end to be noticed
ABORT_S = 20.0  # for rank 0 to come back from a device that waited for a lost rank
LOST = 1  # exit code


class Ranks:
    """The processes of ranks 1 to N - 1."""

    def __init__(self, run: Callable[..., None], seats: Sequence[Any]) -> None:
        """Start them. run: (seat, connection), a module's function. seats: picklable, with rank and
        device.
        """
        context = torch.multiprocessing.get_context("spawn")
        self._seats, self._closing, self._gone = list(seats), False, ""
        self._ends: list[Connection] = []
        self._lock = threading.Lock()
        self._reports: dict[int, dict[str, str]] = {}
        self.processes: list[Any] = []
        for seat in seats:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=run, args=(seat, theirs), daemon=True, name=f"rank {seat.rank}"
            )
            process.start()
            theirs.close()  # so that reading ends with the process
            self._ends.append(ours)
            self.processes.append(process)

    def await_ready(self) -> list[str]:
        """Wait until every rank has loaded its share. Raises InputError or TeamError with a rank's
        own error.

        Returns the text of each report: why ``fused`` is not for the share, if it is not.
        """
        texts: list[str] = []
        for place, end in enumerate(self._ends):
            report = self._report_of(place) if wait([end, self.processes[place].sentinel]) else {}
            if report.get("kind") == "InputError":
                raise InputError(report["text"])
            if report.get("kind") != "ready":
                raise TeamError(self._describe_end(place))
            texts.append(self._reports.pop(place)["text"])
        return texts

    def _report_of(self, place: int) -> dict[str, str]:
        """A rank's report, {} without one."""
        with contextlib.suppress(EOFError, OSError):  # a process that was killed has left none
            if place not in self._reports and self._ends[place].poll():
                self._reports[place] = json.loads(self._ends[place].recv_bytes())
        return self._reports.get(place, {})

    def _describe_end(self, place: int) -> str:
        process = self.processes[place]
        process.join(GRACE_S)
        report = self._report_of(place)
        reason = f": {report['kind']}: {report['text']}" if report else ""
        return f"{self._name(place)} ended with exit code {process.exitcode}{reason}"

    def describe_lost(self, patience_s: float = 0.0) -> str:
        """Describe which ranks have ended and why, the first to end first; empty while all run."""
        ended = wait([process.sentinel for process in self.processes], patience_s)
        with self._lock:  # if two threads read an exit code concurrently, one gets none
            dead = [
                place for place, process in enumerate(self.processes) if process.sentinel in ended
            ]
            # one that was killed has no report
            dead.sort(key=lambda place: bool(self._report_of(place)))
            return "; ".join(map(self._describe_end, dead))

    def require_all(self) -> None:
        """Raise TeamError once a rank has ended."""
        if self._gone:
            raise TeamError(
                f"{self._gone}; finished cases are saved; the same command resumes the run"
            )

    def explain(self, error: Exception) -> None:
        """Raise TeamError where ``error`` comes from a rank that has ended or is stuck."""
        broken = isinstance(error, BrokenError)
        self._gone = self._gone or self.describe_lost(GRACE_S if broken else 0)
        if broken and not self._gone:
            self._gone = (
                f"{' or '.join(map(self._name, range(len(self._seats))))} does not answer ({error})"
            )
        self.require_all()

    def _name(self, place: int) -> str:
        return (
            f"rank {self._seats[place].rank} (process {self.processes[place].pid},"
            f" {self._seats[place].device})"
        )

    def watch(self, team: Team) -> None:
        """Start the thread that watches the processes."""
        self._end_received, self._end_sent = torch.multiprocessing.get_context("spawn").Pipe(
            duplex=False
        )
        threading.Thread(target=self._watch, args=(team,), daemon=True, name="ranks").start()

    def _watch(self, team: Team) -> None:
        wait([self._end_received, *(process.sentinel for process in self.processes)])
        if self._closing:
            return
        self._gone = self._gone or self.describe_lost(GRACE_S)
        if team.device.type != "cuda":
            return  # gloo ends its own waits
        team.abort()
        if not self._end_received.poll(ABORT_S):
            print(
                f"specbench: error: {self._gone}; rank 0 still waits for it on its device",
                file=sys.stderr,
                flush=True,
            )
            os._exit(LOST)

    def close(self, team: Team | None = None) -> None:
        """End the processes; kill one that does not end by itself."""
        if self._closing:
            return
        self._closing = True
        if team is not None:
            self._end_sent.close()
            if not self._gone and not self.describe_lost():
                # a rank that ends just now needs no message
                with contextlib.suppress(RuntimeError):
                    team.send(Op.STOP, wait=False)
        for process in self.processes:
            process.join(GRACE_S if team is not None and not self._gone else 0)
            if process.is_alive():
                process.kill()
            process.join()
        for end in self._ends:
            end.close()
        if team is not None:
            team.leave()
