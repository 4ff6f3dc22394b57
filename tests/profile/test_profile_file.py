"""A profile survives its file, and a wrong file is an error that names the entry."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from builders.profiles import FIT, MEASURED
from specbench.input import InputError
from specbench.profile import (
    ModelShape,
    RowGrid,
    device_name,
    find_profile,
    read_profile,
    require_folder,
    write_profile,
)

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "profiles" / "published"


def test_a_measured_profile_comes_back_as_it_was(tmp_path):
    rows = RowGrid((1, 2), (0, 3), (25,), np.array([[[1.0, 1.5], [np.nan, 2.0]]]))
    shape = ModelShape(100, 8, 16, 50, 2, 2, 1, 4, 2)
    whole = replace(
        MEASURED, rows=rows, shape=shape, buckets=(1, 8), versions={"torch": "2"}, parameters=7
    )
    back = read_profile(write_profile(whole, tmp_path))
    assert back.label == whole.label
    assert (back.shape, back.ceilings, back.buckets, back.parameters) == (
        shape,
        whole.ceilings,
        (1, 8),
        7,
    )
    assert np.array_equal(back.surface.ms, whole.surface.ms)
    assert np.array_equal(back.rows.ms, rows.ms, equal_nan=True)
    assert back.control == whole.control
    assert back.versions == {"torch": "2"}


def test_names_widths_and_the_published_fit():
    assert (
        replace(MEASURED, device="AMD EPYC (x), 2 threads").name
        == "amd-epyc-x-2-threads-tiny-eager-float32"
    )
    (path,) = PUBLISHED.glob("h100*.json")
    fit = read_profile(path)
    assert fit.kind == "published"
    assert "SpecDecode-Bench" in fit.source
    assert fit.step_ms([1], [500])[0] == pytest.approx(5.886 + 0.021 + 0.0195 + 1.207, abs=2e-3)
    wide = replace(FIT, buckets=(1, 8, 16))
    assert (
        wide.forward_ms([1, 2, 9, 40], [0] * 4).tolist()
        == FIT.forward_ms([1, 8, 16, 40], [0] * 4).tolist()
    )


def grid(**changes):
    """A grid of one point, with some entries changed."""
    return {
        "grid": {
            "fed": [1],
            "contexts": [1],
            "ms": [[1]],
            "host_ms": [[0]],
            "spread": [[0]],
            **changes,
        }
    }


WRONG = [
    ({"schema": 2}, "schema is 2, which should be 1"),
    ({"kind": "published"}, "source is empty"),
    (
        {"fit": {"base_ms": 1, "per_fed_us": 0, "per_context_us": 0, "host_ms": 0}},
        "both or neither",
    ),
    (grid(fed=[2, 4]), "grid.fed is [2, 4], which should have 1 as the first number"),
    (grid(fed=[1, 4]), "grid.ms is [[1]], which should have 1 x 2 numbers: contexts, fed"),
    (grid(ms=[[10**400]]), "grid.ms.0.0 is 1000"),
    (
        {"ceilings": {"read_gb_s": 1, "copy_gb_s": 1, "matmul_gflop_s": 1, "speed": 1}},
        "ceilings.speed is 1",
    ),
    (
        {"rows": {"k": [1], "w": [1], "contexts": [25], "ms": [[[1.0]]]}},
        "rows.w is [1], which should have 0 as",
    ),
    (
        {"rows": {"k": [1], "w": [0], "contexts": [25], "ms": [[[None]]]}},
        "a time of the single token",
    ),
    ({"buckets": [8, 4]}, "buckets is [8, 4], which should have ascending numbers"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_a_wrong_entry_is_named(tmp_path, changes, message):
    path = write_profile(MEASURED, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=f"{re.escape(str(path))}.*{re.escape(message)}"):
        read_profile(path)


def test_no_file_and_no_json_are_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json: no such file"):
        read_profile(tmp_path / "nowhere.json")
    for text in ("{", "", "[" * 100_000):
        (tmp_path / "half.json").write_text(text)
        with pytest.raises(InputError, match="not JSON"):
            read_profile(tmp_path / "half.json")


def test_the_newest_profile_of_the_very_same_thing_is_found_and_a_broken_one_passed_over(
    tmp_path, caplog
):
    own = ("a processor, 1 thread", "tiny", "eager", "float32", 1_000_000)
    for number, changes in enumerate(
        ({"date": "2026-01-02"}, {"date": "2026-03-04"}, {"dtype": "bfloat16"})
    ):
        profile = replace(MEASURED, **{"device": own[0], "parameters": own[4], **changes})
        write_profile(profile, tmp_path / str(number))
    (tmp_path / "0" / "broken.json").write_text("[]")
    folders = [tmp_path / str(number) for number in range(4)]
    path, found = find_profile(folders, *own)
    assert (path.parent.name, found.date) == ("1", "2026-03-04")
    assert "broken.json" in caplog.text
    assert find_profile(folders, *own[:4], 2_000_000) is None


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("cpu", "a chip, 2 threads"),
        ("cuda", "GPU 0"),
        ("cuda:1", "GPU 1"),
    ],
)
def test_a_device_is_called_as_the_machine_calls_it(device, name):
    machine = {"cpu": "a chip", "threads": 2, "gpus": [{"name": "GPU 0"}, {"name": "GPU 1"}]}
    assert device_name(machine, device) == name
    assert device_name(machine, device, "tensor", 2) == f"{name}, 2 by tensor"


def test_a_folder_is_made_and_one_that_cannot_be_is_an_error(tmp_path):
    require_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert not list((tmp_path / "a" / "b").iterdir())
    with pytest.raises(InputError, match="is named as a file; expected a folder"):
        require_folder(tmp_path / "mine.json")


def test_behind_the_grid_a_forward_takes_at_least_its_products():
    shape = ModelShape(5_000_000_000, 8, 16, 50, 2, 2, 1, 4, 2)
    flat = replace(
        MEASURED, surface=replace(MEASURED.surface, ms=np.full((2, 3), 10.0)), shape=shape
    )
    # 1e10 operations a token at 100 GFLOP/s: 100 ms each, whatever the last slope of the grid is
    assert flat.forward_ms([8, 9, 64], [100, 100, 100]).tolist() == pytest.approx([10, 900, 6400])
    assert flat.step_ms([9], [100])[0] == pytest.approx(900 + flat.surface.rest_ms([9], [100])[0])
    assert replace(flat, ceilings=None).forward_ms([64], [100])[0] == pytest.approx(10)
