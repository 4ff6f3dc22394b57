"""cuDNN's attention is off in every process of a run, unless the run asks for it; the manifest
names what is on.
"""

from __future__ import annotations

import pytest
from torch.backends.cuda import cudnn_sdp_enabled, enable_cudnn_sdp

from actors import Diary
from builders.runs import job_for
from methods.parts.port import Port
from specbench.measure.environment import machine
from specbench.models.tensor_parallel.start import TeamSettings
from specbench.runs.session import set_stage

OTHERS = ["flash", "efficient", "math"]


@pytest.fixture(autouse=True)
def _restored():
    before = cudnn_sdp_enabled()
    yield
    enable_cudnn_sdp(before)


@pytest.mark.parametrize("asked", [False, True])
def test_a_run_chooses_and_its_manifest_says_so(asked):
    enable_cudnn_sdp(not asked)
    job = job_for("model=tiny", "method=[]", *(["model.cudnn_attention=true"] if asked else []))
    with set_stage(job):
        assert machine()["attention"] == ["cudnn"] * asked + OTHERS


@pytest.mark.exhaustive
@pytest.mark.parametrize("allowed", [False, True])
def test_processes_of_the_run_follow_it(allowed):
    """A drafting process, and the seats that other ranks are started with."""
    enable_cudnn_sdp(allowed)
    port = Port("process", Diary, ("dear",), 60.0)
    assert port.ask("sees_cudnn") is allowed
    port.close()
    assert TeamSettings(job_for("model=tiny").source.card, 2, 8).cudnn is allowed
