"""The ranks of one model as one of them sees the others: a sum on the devices, a broadcast between the hosts.

Sums run over NCCL on GPUs and over gloo on CPUs, and give up after a while; what rank 0 says goes from host to host,
where a follower may wait for as long as rank 0 has other things to do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from specbench.target.tensor_parallel.message import Message, MessageFormat

HOST = "127.0.0.1"  # all ranks are on one machine
START = timedelta(minutes=30)  # the ranks meet
IDLE = timedelta(days=30)  # a follower waits for work; it ends with its parent, not by this


class TeamError(RuntimeError):
    """A rank of the model is lost, stuck or of another mind: the run ends, and the message names the rank."""


class BrokenError(RuntimeError):
    """An exchange between ranks failed, or took longer than it may; why is for whoever watches them to say."""


@contextlib.contextmanager
def _exchange() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise BrokenError(str(error).splitlines()[0].rpartition("] ")[2]) from error  # without the library's own path


def open_store(port: int, ranks: int) -> Any:
    """Where ranks meet. port: 0 = this is rank 0, which takes a free one (``.port``)."""
    return dist.TCPStore(HOST, port, ranks, is_master=port == 0, timeout=START, wait_for_workers=False)


class Team:
    """One rank's view. The process must not be part of another group of torch's."""

    def __init__(
        self, store: Any, rank: int, ranks: int, device: torch.device, format: MessageFormat, patience_s: float
    ) -> None:
        """Meet the others; returns when all are there. patience_s: of one exchange; followers wait for ever."""
        if dist.is_initialized():
            raise TeamError("torch's process group is in use in this process; expected one run at a time, no torchrun")
        self.rank, self.ranks, self.device = rank, ranks, device
        self._format, self._buffer = format, format.empty()
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(device)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=START)
        patience = timedelta(seconds=patience_s)
        self._hosts = dist.new_group(backend="gloo", timeout=IDLE if rank else patience)
        self._sums = dist.new_group(backend="nccl" if on_gpu else "gloo", timeout=patience)

    def total(self, part: Tensor) -> Tensor:
        """The sum of every rank's ``part``, in its place."""
        with _exchange():
            dist.all_reduce(part, group=self._sums)
        return part

    def tell(self, message: Message, ids: Tensor | None = None) -> None:
        """Rank 0: say what comes. ids: (message.size,) int64 on the host, behind it."""
        self._format.write(message, self._buffer)
        with _exchange():
            dist.broadcast(self._buffer, 0, group=self._hosts)
            if ids is not None:
                dist.broadcast(ids, 0, group=self._hosts)

    def tell_end(self, message: Message) -> None:
        """Rank 0: the last word, not waited for."""
        self._format.write(message, self._buffer)
        dist.broadcast(self._buffer, 0, group=self._hosts, async_op=True)

    def hear(self) -> Message:
        """The others: wait for it."""
        with _exchange():
            dist.broadcast(self._buffer, 0, group=self._hosts)
        return self._format.read(self._buffer)

    def hear_ids(self, count: int) -> Tensor:
        """The others: the ids behind a message."""
        ids = torch.empty(count, dtype=torch.int64)
        with _exchange():
            dist.broadcast(ids, 0, group=self._hosts)
        return ids

    def gather(self, values: Tensor) -> list[Tensor]:
        """Every rank's ``values`` (n,) on the host, in order of rank."""
        found = [torch.empty_like(values) for _ in range(self.ranks)]
        with _exchange():
            dist.all_gather(found, values, group=self._hosts)
        return found

    def abort(self) -> None:
        """Let go of whoever waits on a device for a rank that is gone; gloo notices by itself."""
        if self.device.type == "cuda":
            group: Any = self._sums
            group.abort()

    def leave(self) -> None:
        """Give the process group back; nobody waits for the others."""
        if dist.is_initialized():
            dist.destroy_process_group()


class Summed:
    """A linear map whose input is spread over the ranks: every rank's product, then their sum."""

    def __init__(self, linear: Callable[[Tensor], Tensor], total: Callable[[Tensor], Tensor]) -> None:
        self._linear, self._total = linear, total

    def __call__(self, rows: Tensor) -> Tensor:
        """(rows, in / ranks) -> (rows, out), the same on every rank."""
        return self._total(self._linear(rows))
