"""Energy by NVML's counters: read around every request, and no word about it where there are
none.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from builders.runs import execute_job
from specbench.measure.clock import NVML, Meter, gpus_in_use, open_meter


class FakeError(Exception):
    """The error that the module raises."""


class FakeNvml(ModuleType):
    """Two GPUs that use 5 and 7 mJ between any two readings, as the driver numbers them: the other
    way round.
    """

    NVMLError = FakeError

    def __init__(self, without: str = "") -> None:
        super().__init__(NVML)
        self._without, self._used = without, {"GPU-b": 10**9, "GPU-a": 10**6}
        self.started = False

    def _fail(self, name: str) -> None:
        if name == self._without:
            raise FakeError(name)

    def nvmlInit(self) -> None:
        self._fail("init")
        self.started = True

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        self._fail("handle")
        if name not in self._used or not self.started:
            raise FakeError(name)
        return name

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        self._fail("counter")
        self._used[handle] += {"GPU-a": 5, "GPU-b": 7}[handle]
        return self._used[handle]

    def lose(self, name: str) -> None:
        """From now on this call fails."""
        self._without = name


@pytest.fixture
def install(monkeypatch):
    """A fake module, and torch's two GPUs."""
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(uuid="ab"[gpu])
    )

    def put(nvml: FakeNvml | None) -> FakeNvml | None:
        monkeypatch.setitem(sys.modules, NVML, nvml)  # None: importing it fails
        return nvml

    return put


def test_joules_of_all_gpus_since_a_reading(install):
    install(FakeNvml())
    meter = open_meter([0, 1])
    before = meter.joules()
    # one reading was made to see that there is one
    assert before == pytest.approx((10**9 + 10**6 + 2 * 12) * 1e-3)
    assert meter.since(before) == pytest.approx(0.012)
    assert open_meter([0]).since(0.0) == pytest.approx(1000, rel=1e-3)


@pytest.mark.parametrize("without", ["init", "handle", "counter"])
def test_no_meter_where_the_driver_refuses(install, without):
    install(FakeNvml(without))
    assert open_meter([0]) is None


def test_no_meter_without_the_package_or_a_gpu(install, recwarn, capfd):
    install(None)
    assert open_meter([0]) is None
    install(FakeNvml())
    assert open_meter([]) is None
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def test_a_counter_that_is_lost_on_the_way_leaves_a_blank(install):
    nvml = install(FakeNvml())
    meter = open_meter([0])
    before = meter.joules()
    nvml.lose("counter")
    assert meter.joules() is None
    assert meter.since(before) is None
    assert meter.since(None) is None


def test_the_targets_gpus_and_those_with_tensors_of_the_run(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda gpu: 100 * (gpu in (1, 3)))
    assert gpus_in_use(torch.device("cuda"), None) == [0, 1, 3]
    assert gpus_in_use(torch.device("cuda:1"), 2) == [1, 2, 3]  # one of them is another process's
    assert gpus_in_use(torch.device("cpu"), None) == []


def test_a_run_records_every_requests_energy(tmp_path, monkeypatch):
    options = (
        "method=[pld]",
        "suite.first=2",
        "decode.max_new_tokens=4",
        "measure=quick",
        "measure.warmup=1",
    )
    without = execute_job(tmp_path / "without", *options)
    assert {turn.energy_j for each in without for turn in each.turns} == {None}
    nvml = FakeNvml()
    monkeypatch.setattr("specbench.runs.execution.open_meter", lambda gpus: Meter(nvml, ["GPU-a"]))
    metered = execute_job(tmp_path / "with", *options)
    assert {turn.energy_j for each in metered for turn in each.turns} == {0.005}
