"""A profile survives its file, and a wrong file is an error that names the entry."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from profiles import FIT, MEASURED

from specbench.profile import ProfileError, RowGrid, Shape, device_name, find_profile, read_profile, write_profile

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "profiles" / "published"


def test_a_measured_profile_comes_back_as_it_was(tmp_path):
    rows = RowGrid((1, 2), (0, 3), (25,), np.array([[[1.0, 1.5], [np.nan, 2.0]]]))
    shape = Shape(100, 8, 16, 50, 2, 2, 1, 4, 2)
    whole = replace(MEASURED, rows=rows, shape=shape, buckets=(1, 8), versions={"torch": "2"}, parameters=7)
    back = read_profile(write_profile(whole, tmp_path))
    assert back.label == whole.label
    assert (back.shape, back.ceilings, back.buckets, back.parameters) == (shape, whole.ceilings, (1, 8), 7)
    assert np.array_equal(back.surface.ms, whole.surface.ms)
    assert np.array_equal(back.rows.ms, rows.ms, equal_nan=True)
    assert back.control == whole.control
    assert back.versions == {"torch": "2"}


def test_a_name_is_a_file_name_of_device_model_engine_and_dtype():
    assert replace(MEASURED, device="AMD EPYC (x), 2 threads").name == "amd-epyc-x-2-threads-tiny-eager-float32"


def test_the_published_fit_is_read_and_says_where_it_is_from():
    (path,) = PUBLISHED.glob("h100*.json")
    fit = read_profile(path)
    assert fit.kind == "published"
    assert "SpecDecode-Bench" in fit.source
    assert fit.step_ms([1], [500])[0] == pytest.approx(5.886 + 0.021 + 0.0195 + 1.207, abs=2e-3)


def test_a_width_is_rounded_up_to_the_engines():
    wide = replace(FIT, buckets=(1, 8, 16))
    assert wide.forward_ms([1, 2, 9, 40], [0] * 4).tolist() == FIT.forward_ms([1, 8, 16, 40], [0] * 4).tolist()


WRONG = [
    ({"schema": 2}, "schema 2; expected 1"),
    ({"device": ""}, "device=''"),
    ({"kind": "guessed"}, "kind='guessed'"),
    ({"kind": "published"}, "source is empty"),
    ({"grid": None}, "neither of `grid` and `fit`"),
    ({"fit": {"base_ms": 1}}, "both or neither"),
    ({"grid": {"fed": [2, 4], "contexts": [1]}}, "starts at 2; expected 1"),
    ({"grid": {"fed": [1, 1], "contexts": [1]}}, "expected ascending"),
    ({"grid": {"fed": [1, "4"], "contexts": [1]}}, "grid.fed='4'; expected a number"),
    ({"grid": {"fed": [1, 4], "contexts": [1], "ms": [[1]], "host_ms": [[0, 0]], "spread": [[0, 0]]}}, "grid.ms is"),
    ({"grid": {"fed": [1], "contexts": [1], "ms": [[0]], "host_ms": [[0]], "spread": [[0]]}}, "0 or less"),
    ({"ceilings": {"read_gb_s": 0, "copy_gb_s": 1, "matmul_gflop_s": 1}}, "ceilings.read_gb_s=0"),
    ({"ceilings": {"speed": 1}}, "speed"),
    ({"rows": {"k": [1, 2], "w": [0], "contexts": [25], "ms": [[[1.0]]]}}, "expected (1, 2, 1)"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_a_wrong_entry_is_named(tmp_path, changes, said):
    path = write_profile(MEASURED, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ProfileError) as error:
        read_profile(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_no_file_and_no_json_are_named(tmp_path):
    with pytest.raises(ProfileError, match=r"nowhere\.json"):
        read_profile(tmp_path / "nowhere.json")
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(ProfileError, match="not JSON"):
        read_profile(tmp_path / "half.json")


def test_the_newest_profile_of_the_very_same_thing_is_found_and_a_broken_one_passed_over(tmp_path, caplog):
    own = ("a processor, 1 thread", "tiny", "eager", "float32", 1_000_000)
    for number, changes in enumerate(({"date": "2026-01-02"}, {"date": "2026-03-04"}, {"dtype": "bfloat16"})):
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
    [("cpu", "a chip, 2 threads"), ("cuda", "GPU 0"), ("cuda:1", "GPU 1"), ("mps", "a chip, 2 threads")],
)
def test_a_device_is_called_as_the_machine_calls_it(device, name):
    machine = {"cpu": "a chip", "threads": 2, "gpus": [{"name": "GPU 0"}, {"name": "GPU 1"}]}
    assert device_name(machine, device) == name
