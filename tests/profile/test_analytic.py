"""Analytic profiles: bytes and operations of a forward, and the profiles of pairs of GPU and
model.
"""

from pathlib import Path

import numpy as np
import pytest

from specbench.input import InputError
from specbench.profile import ModelShape, find_pair, open_profile, read_profile
from specbench.profile.analytic import (
    GPUS,
    MODELS,
    analytic_profile,
    error_of,
    gpus_needed,
    shape_of,
)
from specbench.profile.profile import ANALYTIC

LLAMA_7B = ModelShape(6_607_343_616, 4096, 11008, 32000, 32, 32, 32, 128, 2)
H200, A100 = (4300.0, 790_000.0), (1750.0, 260_000.0)  # GB/s, GFLOP/s


def test_bytes_operations_and_the_compute_bound_region():
    assert LLAMA_7B.bytes_read(1, 512) * 1e-9 == pytest.approx(13.5, abs=0.05)
    assert LLAMA_7B.operations(1, 512) * 1e-9 == pytest.approx(13.5, abs=0.05)
    assert LLAMA_7B.bytes_read(1, 2048) * 1e-9 == pytest.approx(14.3, abs=0.05)
    low, high = LLAMA_7B.slowdown([64, 512], 512, 4300.0, 10_000.0)
    assert (low <= high).all()


@pytest.mark.parametrize(
    ("machine", "fed", "low", "high"),
    [
        (H200, 8, 1.00, 1.04),
        (H200, 128, 1.07, 1.76),
        (A100, 96, 1.05, 1.69),
    ],
)
def test_the_range_of_the_slowdown(machine, fed, low, high):
    found = LLAMA_7B.slowdown([fed], 512, *machine)
    assert [each[0] for each in found] == pytest.approx([low, high], abs=0.011)


PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "profiles" / "published"


def test_shapes_have_their_parameters_and_every_pair_fits_on_the_fewest_gpus():
    """Of the model cards; Qwen's 32,763,876,352 have biases too."""
    sizes = {model: shape_of(model)[2] for model in MODELS}
    assert sizes == pytest.approx(
        {"1b": 1_235_814_400, "8b": 8_030_261_248, "32b": 32_763_876_352, "70b": 70_553_706_496},
        rel=2e-5,
    )
    needed = {(gpu, model): gpus_needed(gpu, model) for gpu in GPUS for model in MODELS}
    assert {pair for pair, count in needed.items() if count == 8} == {
        (gpu, "70b") for gpu in ("rtx4090", "a10", "l4")
    }
    assert (needed["h100", "70b"], needed["h200", "70b"], needed["a100", "32b"]) == (4, 2, 1)
    with pytest.raises(InputError, match="expected at least 4"):
        find_pair("h100x2-70b")
    with pytest.raises(InputError, match="no such gpu"):
        analytic_profile("b200", "8b")
    assert find_pair("results/h100-8b.json") is None


def test_the_published_fit_is_within_a_tenth():
    """A wrong efficiency, half of it, is not."""
    (path,) = PUBLISHED.glob("h100*.json")
    assert open_profile(path.stem) == open_profile(path) == read_profile(path)
    assert open_profile("h100-8b") == find_pair("h100-8b")
    with pytest.raises(
        InputError, match=r"h100-9b: no such file; expected .* or a pair such as h100-8b"
    ):
        open_profile("h100-9b")


def test_a_published_name_is_the_nearest_folders_whatever_else_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = next(PUBLISHED.glob("*.json"))
    near = tmp_path / "results" / "profiles" / "published" / path.name
    near.parent.mkdir(parents=True)
    near.write_text("{}")
    (tmp_path / path.stem).mkdir()  # a folder of that name is no profile
    monkeypatch.setattr("specbench.profile.file._INSTALLED", PUBLISHED)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=path.stem):
        open_profile(path.stem)
    near.write_bytes(path.read_bytes())
    assert open_profile(path.stem) == read_profile(near)
    known, own = read_profile(path), find_pair("h100/8b")
    assert own is not None
    assert own.kind == ANALYTIC
    assert "analytic" in own.label
    errors = [
        error_of(own, known, fed, context)
        for fed in (1, 8, 64, 256)
        for context in (0, 4000, 32000)
    ]
    assert max(map(abs, errors)) < 0.1
    assert abs(error_of(analytic_profile("a100", "8b"), known, 1, 0)) > 0.3


def test_a_profile_that_requests_share_is_the_load_of_a_report():
    own = analytic_profile("h100", "8b")
    fed, context = np.array([1.0, 5.0]), np.array([100.0, 900.0])
    shared = own.shared(8)
    assert shared.step_ms(fed, context) == pytest.approx(own.shared_ms(8 * fed, context, 8))
    assert own.shared(1) is own
