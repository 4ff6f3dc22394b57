"""The commands of ``specbench``: the table, the run index, two runs, two methods, and what
completes a line.
"""

import contextlib
import itertools
import json
import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from omegaconf import OmegaConf
from report.conftest import fail, fail_one, serve

import specbench
from builders.profiles import FIT
from builders.resumed import edit_manifest
from specbench import commands, load
from specbench.commands import completion, fetch
from specbench.commands.completion import complete_line
from specbench.commands.diff import describe_equal
from specbench.input import InputError
from specbench.profile import write_profile
from specbench.records.record import VANILLA
from specbench.records.store import MANIFEST, RECORDS, read_run
from specbench.report.build import read_findings
from specbench.report.frames.regression import Limit, check_limits
from specbench.stats import Estimate

ROOT = Path(__file__).resolve().parents[2]
LIGHT = ("runs", "completion", "schema", "tune", "profile", "choose")


def test_every_command_has_its_line(capsys):
    assert commands.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in commands.COMMANDS)
    assert commands.main(["reprot"]) == 2
    assert "did you mean report?" in capsys.readouterr().err


LIGHTEST = """if True:
    import sys, importlib
    for each in {light!r}: importlib.import_module(each)
    assert not {{"torch", "transformers", "pandas"}} & {{*sys.modules}}"""
REPORT = """if True:
    import sys, importlib
    from specbench.commands.report import main
    for each in ("merge", "diff", "compare"):
        importlib.import_module(f"specbench.commands.{{each}}")
    heavy = {{"torch", "hydra", "omegaconf", "transformers", "datasets"}}
    assert main([{run!r}, "--compat", "spec_bench"]) == 0
    assert not {{"matplotlib", *heavy}} & {{*sys.modules}}
    assert main([{run!r}, "--no-plots"]) == 0
    for each in ("catalogue", "sweep", "latency"):
        importlib.import_module(f"specbench.report.plots.{{each}}")
    assert not heavy & {{*sys.modules}}"""


@pytest.mark.parametrize("script", [LIGHTEST, REPORT], ids=["settings", "report"])
def test_what_needs_no_torch_runs_without_it(make_run, script):
    """Settings, index and completions also without pandas; the tables of a report without
    matplotlib.
    """
    tokenizer = str(Path(specbench.__file__).parent / "assets/tiny")
    run = make_run(per_category=1, manifest={"model": {"name": "m", "path": tokenizer}})
    light = ["specbench.runs.composition", *(f"specbench.commands.{each}" for each in LIGHT)]
    code = script.format(light=light, run=str(run))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_index_says_what_is_best_and_what_is_complete(make_run, output, refused):
    whole = make_run("results/whole", per_category=2)
    results = whole.parent
    for name in ("stopped", "whole.old1", "sweep/0", "sweep/1", "sweep/2"):
        make_run(f"results/{name}", per_category=1)
    edit_manifest(results / "sweep/0", lambda sheet: sheet.update(blocks=70))
    varied = {"pld": {"num_draft": 3}}
    edit_manifest(results / "sweep/1", lambda sheet: sheet["config"].update(method=varied))
    (results / "sweep/2" / MANIFEST).write_text("{")
    edit_manifest(whole, lambda sheet: sheet["suite"].update(cases=12))
    rows = "category,method,speedup,speedup_low,speedup_high,mat\noverall,vanilla,1,,,1\n"
    rows += "overall,pld,1.5,1.4,1.6,2\nqa,sam,9,8,10,9\n"
    (whole / "summary.csv").write_text(rows)
    with (results / "stopped" / RECORDS).open("a") as file:
        file.write('{"half')
    (results / "latest").symlink_to(whole)
    printed = output("list", results).splitlines()
    lines = {line.split()[2]: line for line in printed if line[1:3] == "20"}
    assert set(lines) == {"whole", "stopped", "sweep/0", "sweep/1"}
    assert lines["sweep/1"].split()[3] == "pld.num_draft=3"
    assert lines["sweep/0"].split()[3] == "pld.num_draft=unset"
    assert lines["whole"].split()[-5:] == ["pld", "1.50", "[1.40,", "1.60]", "complete"]
    assert "6 of 60 blocks" in lines["stopped"]
    assert "6 of 70 blocks" in lines["sweep/0"]
    (whole / "summary.csv").write_text("category,method,speedup\noverall,pld,x\n")
    assert "summary.csv cannot be read" in output("list", results)
    assert "contains no run" in refused("list", results / "stopped")


def test_two_runs_are_the_same_or_say_where_not(make_run, output):
    one, two = make_run("one", per_category=1), make_run("two", per_category=1)
    edit_manifest(two, lambda sheet: sheet["config"]["decode"].update(temperature=0.5))
    records = read_run(one).records

    def edit(line):
        line["turns"][0]["ids"][0] += line["case"] == records[0].case

    change(two, edit)
    assert f"; {len(records)} have the same tokens" in describe_equal(records, records)
    out = output("diff", one, two)
    alike = sum(each.case != records[0].case for each in records)
    assert f"{len(records)} records are in both" in out
    assert f"{alike} have the same tokens" in out
    assert "decode.temperature" in out


def test_two_methods_are_compared_by_factors_that_multiply_and_by_category(
    make_run, output, refused
):
    run = make_run("one", per_category=2)
    out = output("compare", "pld", "token_recycling", run)
    assert re.match(rf"{run.name}: tiny on mini, \d+ cases", out)
    assert "speed: pld over token_recycling" in out
    cells = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    *factors, speedup = map(float, cells["pld"])
    assert math.prod(factors) == pytest.approx(speedup, rel=0.03)
    assert "translation" in cells
    for wrong, named in (
        (["pld", "tokn"], "tokn: no method"),
        (["pld", "vanilla", "--category", "transl"], "did you mean translation?"),
    ):
        assert named in refused("compare", *wrong, run)


def test_the_ratio_of_a_category_has_an_interval_and_a_load_is_named(make_run, output):
    interval = r"[\d.]+ \[[\d.]+, [\d.]+\]"
    given = ("compare", "pld", "vanilla")
    out = output(*given, make_run("alone", per_category=8))
    assert re.search(r"ratio \[95 %\]", out)
    assert re.search(rf"qa +[\d.]+ +1\.00 +{interval}", out)
    load = make_run("load", per_category=8, edit=partial(serve, requests=4))
    out = output(*given, load)
    assert "4 requests at once (load=closed)" in out
    assert re.search(rf"speed of the server, in tokens/s: pld over vanilla {interval}", out)
    out = output(*given, load, "--category", "qa")
    assert re.search(r"speed of each request: pld over vanilla [\d.]+$", out, re.M)


@pytest.mark.parametrize("words", ["--help", "list {0.parent}", "report {0} --no-plots"])
def test_a_full_standard_output_is_named(make_run, capsys, monkeypatch, words):
    given = words.format(make_run(per_category=1)).split()
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails too
        monkeypatch.setattr("sys.stdout", full)
        code = commands.main(given)
        monkeypatch.undo()
    assert code == 1
    assert "standard output: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(("category", "modelled"), [("translation", False), ("qa", True)])
def test_the_factors_of_a_category_are_those_of_a_run_of_it_alone(
    make_run, tmp_path, output, category, modelled
):
    """The records are drawn once, and the second run has those of the category."""

    def keep(manifest, records):
        records[:] = [each for each in records if each.category == category]
        blocks = sorted({each.block for each in records})
        for each in records:
            each.block = blocks.index(each.block)

    about = {"per_category": 9, "engine": "replay" if modelled else "eager"}
    options = ["--profile", write_profile(FIT, tmp_path)] if modelled else []
    every, alone = make_run("every", **about), make_run("alone", **about, edit=keep)
    printed = []
    for run, chosen in ((every, ["--category", category]), (alone, []), (every, [])):
        text = output("compare", "pld", "token_recycling", run, *chosen, *options)
        whole = "The times are unsafe", "With drafting at half and at twice"  # of the run's cases
        printed.append([line for line in text.splitlines()[1:] if not line.startswith(whole)])
    for one, other in zip(*printed[:2], strict=True):
        texts, others = (re.findall(r"[\d.]+\d", line) for line in (one, other))
        # a modelled drafting time is a mean of the run's cases
        assert list(map(float, texts)) == pytest.approx(
            list(map(float, others)), abs=0.011 * modelled
        )
    assert printed[0][0] != printed[2][0]
    assert any(line.split()[:1] == ["ratio"] for line in printed[0])


def test_a_case_has_its_speedup_over_vanilla_in_the_same_round(make_run):
    run = make_run(per_category=2, rounds=2, edit=fail_one, methods={"pld": (3.0, 0.5, 1e-3)})
    cases = load(run).cases.set_index(["case", "round", "method"])
    assert (cases.xs("vanilla", level="method")["speedup"] == 1).all()
    assert cases.loc[~cases["ok"], "speedup"].isna().tolist() == [True]
    for (case, number, _), row in cases[cases["ok"]].iterrows():
        vanilla = cases.loc[(case, number, "vanilla")]
        pace = vanilla["seconds"] / vanilla["tokens"]
        assert row["speedup"] == pytest.approx(pace / (row["seconds"] / row["tokens"]))


@pytest.mark.parametrize("engine", ["replay", "timed"])
def test_a_case_without_a_claimed_time_has_no_speedup(make_run, engine):
    cases = load(make_run(per_category=1, engine=engine)).cases
    assert cases["speedup"].isna().all()
    assert cases["mat"].notna().any()


def test_a_case_is_paired_in_its_own_run(make_run):
    runs = [make_run(f"sweep/{n}", per_category=1, seed=n) for n in range(2)]
    alone = pd.concat([load(run).cases["speedup"] for run in runs])
    found = load(runs[0].parent).cases["speedup"]
    assert found.tolist() == pytest.approx(alone.tolist(), nan_ok=True)


@pytest.mark.parametrize("name", [name for name in commands.COMMANDS if name != "run"])
def test_help_is_plain_text_and_a_wrong_word_an_error(name, output, refused, tmp_path, monkeypatch):
    """Every command has one form of an error; ``run`` has the help of Hydra."""
    monkeypatch.chdir(tmp_path)
    assert "``" not in output(name, "--help")
    error = refused(name, "NOTHING", *(["--out", "x"] if name == "merge" else []))
    assert error.splitlines()[-1].startswith(f"specbench {name}: error: ")


def test_the_first_command_ends_with_a_comparison_of_methods_that_ran():
    """``make bench`` prints it."""
    (pair,) = re.findall(r"specbench compare (\w+ \w+)'", (ROOT / "Makefile").read_text())
    default = OmegaConf.load(ROOT / "conf/config.yaml")["defaults"]
    assert {*pair.split()} < {*next(each["method"] for each in default if "method" in each)}


@pytest.mark.parametrize(
    ("line", "shell", "wanted"),
    [
        ("specbench comp", "bash", ["compare", "completion"]),
        (
            "specbench 'method=[pld,suffix_dec",
            "bash",
            [f"method=[pld,suffix_decoding{end}" for end in ("", "_local")],
        ),
        (
            "specbench run measure.lossless=",
            "zsh",
            ["measure.lossless=false", "measure.lossless=true"],
        ),
        ("specbench model=tiny su", "zsh", ["suite.", "suite="]),
        ("specbench tune suite=mi", "bash", ["mini"]),
    ],
)
def test_the_tab_key_completes_commands_settings_and_options(line, shell, wanted):
    assert complete_line(line, shell) == wanted
    assert "_specbench" in completion.SCRIPTS[shell]


def test_what_a_run_reads_is_downloaded(monkeypatch, output, refused):
    asked = {}
    info = SimpleNamespace(siblings=[SimpleNamespace(size=3_000_000_000)])
    monkeypatch.setattr(fetch.HfApi, "model_info", lambda *args, **kwargs: info)
    monkeypatch.setattr(
        fetch,
        "snapshot_download",
        lambda repo, **options: asked.update({repo: options["revision"]}) or "cache",
    )
    monkeypatch.setattr(fetch.constants, "HF_HUB_OFFLINE", False)
    models = ("path=org/model", "draft=org/draft", "revision=v1", "heads.eagle=org/h")
    given = ["fetch", *(f"model.{each}" for each in models)]
    assert "3.0 GB" in output(*given)
    assert asked == {"org/model": "v1", "org/draft": None, "org/h": None}
    monkeypatch.setattr(fetch.constants, "HF_HUB_OFFLINE", True)
    assert "unset it" in refused(*given)


def test_a_run_from_python_is_that_of_the_command(tmp_path, monkeypatch):
    """The same directory, so that a second call has nothing left to do; the functions are no
    modules of that name.
    """
    import specbench.runs.execution  # noqa: F401  (brings every module of a run)
    from specbench import run

    monkeypatch.chdir(tmp_path)
    given = (
        "model=tiny",
        "method=[pld]",
        "suite.limit=1",
        "decode.max_new_tokens=8",
        "measure=quick",
    )
    found = run(*given, "report.plots=false", "suite.categories=[qa]")
    assert found.code == 0
    assert list(found.overall["method"]) == ["vanilla", "pld"]
    assert found.path.parent == tmp_path / "results"
    again = load("results/latest")
    assert again.cases.equals(found.cases)
    pld = again.cases[again.cases["method"] == "pld"]
    assert pld["mat"].iloc[0] == pytest.approx(found.overall.set_index("method")["mat"]["pld"])
    with pytest.raises(InputError, match="did you mean tiny"):
        run("model=tny")


def scale_times(times):
    """Multiplies the times of the named methods, each with its factor; "" names all others."""

    def edit(line):
        factor = times.get(line["method"], times.get("", 1.0))
        if line.get("stretch"):
            line["stretch"]["seconds"] *= factor
        for turn in line["turns"]:
            turn["decode_s"] *= factor
            turn["prefill_s"] *= factor
            if turn.get("load"):
                turn["load"]["arrival_s"] *= factor
            turn["phases_s"] = {
                name: factor * seconds for name, seconds in turn["phases_s"].items()
            }
            turn["step_s"] = [factor * seconds for seconds in turn.get("step_s", ())]

    return edit


@pytest.fixture
def limits(make_run, output):
    """What ``diff`` prints of limits on two equal runs, after an edit of the second's records."""

    def limits(edit, /, *words, code=0, per_category=2, **options):
        one, two = (make_run(name, per_category=per_category, **options) for name in ("one", "two"))
        change(two, edit)
        return output("diff", one, two, "--fail", *words, code=code).partition("Limits.")[2]

    return limits


@pytest.mark.parametrize(
    ("factor", "code", "verdicts"),
    [
        (1.0, 0, {"mat<0.98": "passes", "speedup<0.95": "passes"}),
        (2.0, 1, {"mat<0.98": "passes", "speedup<0.95": "fails"}),
        (0.5, 1, {"prefill_ms<0.9": "fails"}),
        (2.0, 1, {"prefill_ms>1.5": "fails", "prefill_ms>2.5": "passes"}),
    ],
)
def test_a_limit_on_the_ratio_of_two_runs_decides_the_exit_code(limits, factor, code, verdicts):
    """Of pld's times, multiplied by a little more in every second case."""
    factors = itertools.cycle((factor, 1.02 * factor))

    def edit(line):
        if line["method"] == "pld":
            scale_times({"pld": next(factors)})(line)

    found, group = {}, ""
    for line in limits(edit, *verdicts, code=code, per_category=4).splitlines():
        words = line.split()
        # which a table writes once
        group = words.pop(0) if words and re.search("[<>]", words[0]) else group
        found |= {(group, words[0]): line} if len(words) > 3 else {}
    for limit, verdict in verdicts.items():
        line = found[limit, "pld"]
        assert line.split()[-1] == verdict
        assert ("[" in line) == ("mat" not in limit)  # equal figures have no interval


def test_a_ratio_is_judged_by_its_interval():
    for text, low, value, high, verdict in (
        ("mat<0.98", 0.9, 0.95, 0.97, "fails"),
        ("mat<0.98", 0.9, 0.95, 0.99, "inconclusive"),
        ("mat<0.98", 0.9, 0.98, 1.1, "passes"),
        ("mat<0.98", None, 0.95, None, "fails"),
        ("prefill_ms>1.1", 1.2, 1.3, 1.4, "fails"),
        ("prefill_ms>1.1", 1.0, 1.3, 1.4, "inconclusive"),
        ("prefill_ms>1.1", 0.9, 1.0, 1.4, "passes"),
        ("mat<0.98", None, math.nan, None, "missing"),
    ):
        assert Limit.parse(text).judge(Estimate(value, low, high, 9)) == verdict


def change(path, edit, config=None):
    """Applies ``edit`` to every record, and merges settings into the manifest."""
    lines = [json.loads(line) for line in (path / RECORDS).read_text().splitlines()]
    for line in lines:
        edit(line)
    (path / RECORDS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["config"] |= config or {}
    (path / MANIFEST).write_text(json.dumps(manifest))


def test_a_figure_that_was_zero_is_judged(make_run, output):
    one, two = make_run("one", per_category=1), make_run("two", per_category=1)
    given = ("--fail", "violations>1", "errors>1", "lossless<1", "loop_share>1")
    assert "missing" not in output("diff", one, two, *given, "--strict")

    def violate(line):
        line["lossless"]["violations"] = int(line["method"] == "pld")

    change(two, violate)
    assert re.search(r"pld +0\.00 +6\.00 +inf +fails", output("diff", one, two, *given, code=1))
    output("diff", two, one, "--fail", "violations>1")  # 6 to 0


@pytest.mark.parametrize("column", ["tokens_per_s<0.9", "prefill_ms>1.1", "draft_ms>1.1"])
def test_a_machine_that_became_slower_fails_vanilla_alone(limits, column):
    drafted = column == "draft_ms>1.1"  # vanilla drafts nothing
    out = limits(scale_times({"": 1.25}), column, code=0 if drafted else 1)
    assert re.search(r"pld .* inconclusive", out)
    ratio = "0.800 [0.800, 0.800]" if "<" in column else "1.250 [1.250, 1.250]"
    assert f"{column[:-4]}: vanilla's own ratio is {ratio}" in out
    assert bool(re.search(r"vanilla .* fails", out)) is not drafted
    assert not re.search(r"pld .* fails", out)


def test_a_method_that_became_slower_on_a_faster_machine_fails(limits):
    out = limits(scale_times({VANILLA: 0.8, "pld": 1.25}), "tokens_per_s<0.9", code=1)
    assert re.search(r"pld .* fails", out)
    assert "vanilla's own ratio is 1.250" in out


def test_times_of_cases_under_load_fail_no_limit(limits):
    served = {"per_category": 4, "edit": partial(serve, requests=4)}
    given = (scale_times({"pld": 2.0}), "speedup<0.9", "tokens_per_s<0.9")
    out = limits(*given, **served)
    assert len(re.findall(r"pld [^\[\n]* inconclusive", out)) == 2
    assert "slow each other" in out
    limits(*given, "--strict", code=1, **served)


@pytest.mark.parametrize("column", ["acceptance_rate", "cost_per_million", "target_compute"])
def test_a_quotient_of_sums_has_an_interval(make_run, column):
    """Every second case is changed, so a ratio of the case sums moves with the cases."""

    def price(manifest, records):
        manifest["config"]["measure"] = {"price_per_hour": 2.0}

    def edit(line):
        if int(line["case"][-1]) % 2 == 0 or line["method"] != "pld":
            return
        scale_times({"pld": 1.3})(line)
        for turn in line["turns"]:
            for place, count in reversed([*enumerate(turn["accept"])]):
                if count > 1:  # one step more for the same tokens
                    turn["accept"][place : place + 1] = [count - 1, 1]
                    for name in ("proposed", "depth", "fed"):
                        turn[name].insert(place, turn[name][place])

    runs = [make_run(name, per_category=4, edit=price) for name in ("one", "two")]
    change(runs[1], edit)
    checks = check_limits([read_findings([run]) for run in runs], [Limit.parse(f"{column}>9")])
    check = next(each for each in checks if each.method == "pld")
    assert check.ratio.low <= check.ratio.value <= check.ratio.high
    assert check.ratio.value == pytest.approx(check.values[1] / check.values[0])


def test_an_undecided_limit_fails_only_when_strict(make_run, output, refused):
    def edit(manifest, records):
        for each in records:
            if each.method == "pld":
                fail(each)

    runs = make_run("one", per_category=1), make_run("two", per_category=1, edit=edit)
    given = ("diff", *runs, "--fail", "mat<0.9")
    assert re.search(r"pld .* missing", output(*given))
    output(*given, "--strict", code=1)
    for limit, named in (
        ("efficiency<0.9", "no interval of the column efficiency; expected one of cases"),
        ("mta<0.9", "no column mta; expected one of cases"),
        ("mat<0", "mat<0: expected COLUMN<RATIO"),
        ("cost_per_million>1", "cost_per_million in both runs"),
    ):
        assert named in refused("diff", *runs, "--fail", limit)
    assert "--strict" in refused("diff", *runs, "--strict")
