"""Tensors labelled cuda:0 on a machine without a GPU: the CPU computes them, and a complete decode
loop runs on them.

An operation that mixes the CPU's tensors with labelled ones raises an error as on a GPU, and so
does NumPy; every transfer between the two is counted. A labelled tensor contains the CPU's result,
so ids are the same as in a run on the CPU. Random numbers are the CPU's too. Differences of a GPU's
results, and its times, cannot be seen here.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.models.fast.graphs import Graphs

DEVICE = torch.device("cuda", 0)
READ, UPLOAD = "read-back", "upload"
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
# Operations whose result, or its shape, is read by the host; multinomial tests its input twice.
WAITING = {
    "nonzero": 1,
    "is_nonzero": 1,
    "equal": 1,
    "masked_select": 1,
    "argwhere": 1,
    "bincount": 1,
    "_unique2": 1,
    "unique_dim": 1,
    "unique_consecutive": 1,
    "allclose": 1,
    "multinomial": 2,
}
# The first makes tensor(list) a visible copy; the second makes a moved module get new parameters.
_SWITCHES = ((torch._C._only_lift_cpu_tensors, torch._C._set_only_lift_cpu_tensors),
             (torch.__future__.get_overwrite_module_params_on_conversion,
              torch.__future__.set_overwrite_module_params_on_conversion))  # fmt: skip


class DeviceMixError(RuntimeError):
    """An operation that a GPU would refuse."""


class Labelled(Tensor):
    """A tensor that pretends to be on cuda:0. on_cpu: the CPU's tensor. counter: counts its
    transfers.
    """

    on_cpu: Tensor
    counter: FakeCuda

    @staticmethod
    def __new__(cls, on_cpu: Tensor, counter: FakeCuda) -> Labelled:
        """Label a tensor on the CPU."""
        out: Labelled = Tensor._make_wrapper_subclass(
            cls,
            on_cpu.size(),
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
        )
        out.on_cpu, out.counter = on_cpu, counter
        return out

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise DeviceMixError(f"{func} on a labelled tensor outside FakeCuda")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that Python sees. Torch's own code sees the CPU, as a build without CUDA has
        no other device.
        """
        return DEVICE

    def numpy(self, *, force: bool = False) -> Any:
        """Raise, as on a GPU."""
        raise DeviceMixError(
            f"NumPy cannot read {tuple(self.shape)} on {DEVICE}; expected a tensor on the CPU"
        )

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.clone()

    def data_ptr(self) -> int:
        """Return the address of the CPU's tensor."""
        return self.on_cpu.data_ptr()

    def untyped_storage(self) -> Any:
        """Return the storage of the CPU's tensor."""
        return self.on_cpu.untyped_storage()

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None, **_: Any) -> Tensor:  # type: ignore[override]
        """Make a tensor on the same device: an upload."""
        return torch.tensor(data, dtype=dtype or self.dtype, device=DEVICE)


def _read_by(name: str) -> Callable[[Labelled], Any]:
    def read(labelled: Labelled) -> Any:
        """Read the value on the host, which waits for the device."""
        labelled.counter.count(READ, True, "a value")
        return getattr(labelled.on_cpu, name)()

    return read


for _name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__"):
    setattr(Labelled, _name, _read_by(_name))


class FakeCuda(TorchDispatchMode):
    """A mode in which ``device="cuda"`` labels tensors; a call that a graph would record runs, and
    must not transfer.

    blocking, free: transfers by kind, which wait for the device, and from pinned memory, which do
    not wait. launched: operations on the device without views, and calls that a graph would record,
    one each. recorded: those calls, by their owner and key. Preparing one only enters it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocking: Counter[str] = Counter()
        self.free: Counter[str] = Counter()
        self.launched = 0
        self.recorded: set[tuple[Graphs, Any]] = set()
        self._captured = False
        self._pinned: dict[int, Tensor] = {}  # kept, so that no other tensor gets its place
        self._patches = contextlib.ExitStack()

    def __enter__(self) -> FakeCuda:
        # no time passes
        event = SimpleNamespace(record=lambda *_: None, elapsed_time=lambda _: 0.0)
        stream = SimpleNamespace(record_event=lambda event: event)
        # Memory for any model of a test; before Hopper, so that no kernel begins early.
        properties = SimpleNamespace(
            total_memory=1 << 40, multi_processor_count=2, major=8, minor=0
        )
        stubs: dict[str, Any] = {
            "_lazy_init": lambda: None,
            "device_count": lambda: 1,
            "synchronize": lambda *_: None,
            "get_device_properties": lambda *_: properties,
            "current_stream": lambda *_: stream,
            "Event": lambda **_: event,
        }

        def run(graphs: Graphs, key: Any, call: Callable[[], Any]) -> Any:
            self.launched += 1
            self.recorded.add((graphs, key))
            with self.captured():
                return call()

        self._patches.enter_context(mock.patch.multiple(torch.cuda, **stubs))
        self._patches.enter_context(mock.patch.object(torch, "Generator", _Random))
        prepare = lambda *given: self.recorded.add(given[:2])  # noqa: E731
        self._patches.enter_context(mock.patch.multiple(Graphs, run=run, prepare=prepare))
        if find_spec("triton") is not None:
            self._interpret()
        self._patches.enter_context(torch.inference_mode())
        for read, write in _SWITCHES:
            self._patches.callback(write, read())
            write(True)
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._patches.close()

    def _interpret(self) -> None:
        """Give kernels in Triton's interpreter the CPU's tensors."""
        from triton.runtime.interpreter import GridExecutor

        execute = GridExecutor.__call__

        def launch(executor: Any, *given: Any, **named: Any) -> None:
            self.launched += not self._captured
            execute(executor, *map(_on_cpu, given), **named)

        self._patches.enter_context(mock.patch.object(GridExecutor, "__call__", launch))

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Raise at every transfer inside the block, which a graph would record."""
        self._captured = True
        try:
            yield
        finally:
            self._captured = False

    def count(self, kind: str, blocking: bool, what: object, times: int = 1) -> None:
        """Count a transfer. Raises DeviceMixError in a captured call."""
        if self._captured:
            raise DeviceMixError(f"{kind} by {what} in a captured call")
        (self.blocking if blocking else self.free)[kind] += times

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = (
            dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        )
        name = func._schema.name.removeprefix("aten::")
        if name in ("pin_memory", "_pin_memory") or given.get("pin_memory"):
            host = (
                given["self"].clone()
                if "self" in given
                else func(*args, **{**kwargs, "pin_memory": False})
            )
            return self._pinned.setdefault(host.untyped_storage().data_ptr(), host)
        tensors = list[Tensor]()
        _replace((*args, *kwargs.values()), Tensor, tensors.append)
        labelled = {id(each.on_cpu): each for each in tensors if isinstance(each, Labelled)}
        device = given.get("device")
        if name == "_has_compatible_shallow_copy_type":  # a module that moves asks
            return True
        if name in ("to", "_to_copy"):
            there = given["other"].device if "other" in given else device
            if there is not None and (there.type == "cuda") != bool(labelled):
                return self._copy(
                    given["self"], given.get("dtype"), given.get("non_blocking"), "to()"
                )
        elif name == "copy_" and isinstance(given["self"], Labelled) != isinstance(
            given["src"], Labelled
        ):
            return self._copy(given["src"], given["self"], given.get("non_blocking"), "copy_()")
        elif labelled:
            self._check(func, given, name, tensors)
        on_device = bool(labelled) if device is None else device.type == "cuda"
        if not on_device and not labelled:
            return func(*args, **kwargs)
        if device is not None and "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        elif device is not None:
            args = tuple(torch.device("cpu") if each is device else each for each in args)
        on_cpu = {key: _replace(each, Labelled, _on_cpu) for key, each in kwargs.items()}
        out = func(*_replace(args, Labelled, _on_cpu), **on_cpu)
        self.launched += not (self._captured or func.is_view)
        return _replace(
            out,
            Tensor,
            lambda on_cpu: (
                labelled[id(on_cpu)] if id(on_cpu) in labelled else Labelled(on_cpu, self)
            ),
        )

    def _copy(self, source: Any, target: Any, non_blocking: Any, what: str) -> Any:
        """Copy between devices. target: a tensor, or a dtype for a new one on the other device.

        A copy from pageable memory may wait; one to the host that nothing waits for is a race.
        """
        up = not isinstance(source, Labelled)
        number = up and isinstance(target, Tensor) and source.dim() == 0
        if up and not number:
            pinned = source.untyped_storage().data_ptr() in self._pinned
            self.count(UPLOAD, not (non_blocking and pinned), what)
        elif not up and non_blocking:
            raise DeviceMixError("a copy to the host with non_blocking, which nothing waits for")
        elif not up:
            self.count(READ, True, what)
        if isinstance(target, Tensor):
            _on_cpu(target).copy_(_on_cpu(source))
            return target
        copy = _on_cpu(source).to(target or source.dtype, copy=True)
        return Labelled(copy, self) if up else copy

    def _check(self, func: Any, given: dict[str, Any], name: str, tensors: list[Tensor]) -> None:
        """Raise if devices mix; count transfers that wait. A CPU tensor without dimensions counts
        as a number.
        """
        indices = (
            [each for each in given.get("indices") or () if each is not None]
            if name in INDEXING
            else []
        )
        for each in tensors:
            if isinstance(each, Labelled) or each.dim() == 0:
                continue
            if not any(each is index for index in indices):
                raise DeviceMixError(
                    f"{func} has {tuple(each.shape)} on the CPU among tensors on {DEVICE}"
                )
            self.count(UPLOAD, True, func)
        for each in indices:
            if each.dtype == torch.bool:
                self.count(READ, True, func)
        sized = name == "repeat_interleave" and isinstance(given.get("repeats"), Tensor)
        if (sized and given.get("output_size") is None) or (name == "where" and len(given) == 1):
            self.count(READ, True, func)
        many = name == "multinomial" and given["num_samples"] > 1 and given.get("replacement")
        if name in WAITING and not many:
            self.count(READ, True, func, WAITING[name])


class _Random(torch.Generator):
    """The CPU's generator, for any device."""

    def __new__(cls, *_: Any) -> _Random:
        """Make a new generator."""
        return super().__new__(cls)


def _on_cpu(tensor: Any) -> Tensor:
    return tensor.on_cpu if isinstance(tensor, Labelled) else tensor


def _replace(value: Any, kind: type[Tensor], change: Callable[[Any], Any]) -> Any:
    """Change the tensors of a kind in arguments or results, which contain lists and tuples only."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (list, tuple)):
        found = [_replace(each, kind, change) for each in value]
        return found if isinstance(value, list) else tuple(found)
    return value
