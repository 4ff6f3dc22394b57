"""The command that measures a profile: what it writes, what it prints, and what it refuses."""

from functools import partial

import pytest

from specbench import commands
from specbench.decode import latency
from specbench.decode.latency import measure_ceilings
from specbench.profile import read_profile


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Arguments -> exit code, everything written below a temporary folder."""
    monkeypatch.setattr(latency, "measure_ceilings", partial(measure_ceilings, size=1 << 22))

    def main(*arguments: str, last: bool = True) -> int:
        out = ["--out", str(tmp_path)] if last else []
        return commands.main(["profile", *arguments, *out])

    return main


def test_a_profile_with_rows_is_written_drawn_and_printed(run, tmp_path, capsys):
    small = "--fed 1,4 --contexts 20,40 --rounds 3 --rows --k 1,2 --w 0,2 --row-contexts 20"
    assert run("model=tiny", "engine=eager", *small.split()) == 0
    (path,) = tmp_path.glob("*.json")
    profile = read_profile(path)
    assert (profile.model, profile.engine, profile.dtype, profile.kind) == (
        "tiny",
        "eager",
        "float32",
        "measured",
    )
    assert profile.rows.ms.shape == (1, 2, 2)
    assert {file.name for file in tmp_path.glob("*.png")} == {
        f"{path.stem}.png",
        f"{path.stem}-rows.png",
    }
    out = capsys.readouterr().out
    for message in (
        "T(q)/T(1)",
        "ceilings: read",
        "share of the bandwidth bound",
        "host time a step",
        "A/A",
    ):
        assert message in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model=tiny", "--fed", "2,4"), "expected 1"),
        (("model=tiny", "--contexts", "100000"), "beyond the model's"),
        (("model=tiny", "--rows", "--k", "1,2", "--w", "1,3"), "w=[1, 3]: expected 0"),
        (("model=tiny", "model.dtpe=x"), "did you mean dtype"),
        (("model=tiny", "suite.limit=3"), "suite.limit=3: has no effect on a profile"),
    ],
)
def test_what_cannot_be_measured_is_refused(run, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr("specbench.runs.sources.load_model", None)  # before any weights
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_found_before_the_sweep(
    run, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("specbench.runs.sources.load_model", None)
    (tmp_path / "file").write_text("")
    assert run("model=tiny", "--out", str(tmp_path / "file"), last=False) == 2
    assert "cannot be written" in capsys.readouterr().err
