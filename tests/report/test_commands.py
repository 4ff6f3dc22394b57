"""The commands of ``specbench``: the table, the run index, two runs, two methods, and what completes a line."""

import contextlib
import json
import math
import pkgutil
import re
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from report.conftest import fail, serve

import specbench
from builders.profiles import FIT
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
from specbench.report.locate import find_runs
from specbench.stats import Estimate

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
LIGHT = ("runs", "completion", "schema", "tune", "profile", "choose")


def test_every_command_has_its_module_and_its_line(capsys):
    assert commands.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in commands.COMMANDS:
        assert commands.module_of(name).main, name
        assert f"  {name} " in out
    assert commands.main(["reprot"]) == 2
    assert "did you mean report?" in capsys.readouterr().err


LIGHTEST = """if True:
    import sys, importlib
    for each in {light!r}: importlib.import_module(each)
    assert not {{"torch", "transformers", "pandas"}} & {{*sys.modules}}"""
REPORT = """if True:
    import sys, importlib
    from specbench.commands.report import main
    for each in ("merge", "diff", "compare"): importlib.import_module(f"specbench.commands.{{each}}")
    heavy = {{"torch", "hydra", "omegaconf", "transformers", "datasets"}}
    assert main([{run!r}, "--compat", "spec_bench"]) == 0
    assert not {{"matplotlib", *heavy}} & {{*sys.modules}}
    assert main([{run!r}, "--no-plots"]) == 0
    for each in ("catalogue", "sweep", "latency"): importlib.import_module(f"specbench.report.plots.{{each}}")
    assert not heavy & {{*sys.modules}}"""


@pytest.mark.parametrize("script", [LIGHTEST, REPORT], ids=["settings", "report"])
def test_what_needs_no_torch_runs_without_it(make_run, script):
    """Settings, index and completions also without pandas; the tables of a report without matplotlib."""
    tokenizer = str(Path(specbench.__file__).parent / "assets/tiny")
    run = make_run(per_category=1, manifest={"model": {"name": "m", "path": tokenizer}})
    light = ["specbench.runs.composition", *(f"specbench.commands.{each}" for each in LIGHT)]
    code = script.format(light=light, run=str(run))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_index_says_what_is_best_and_what_is_complete(make_run, capsys):
    whole = make_run("results/whole", per_category=2)
    results = whole.parent
    for name in ("stopped", "whole.old1", "sweep/0", "sweep/1", "sweep/2"):
        make_run(f"results/{name}", per_category=1)
    varied = json.loads((results / "sweep/1" / MANIFEST).read_text())
    varied["config"]["method"] = {"pld": {"num_draft": 3}}
    (results / "sweep/1" / MANIFEST).write_text(json.dumps(varied))
    (results / "sweep/2" / MANIFEST).write_text("{")
    rows = "category,method,speedup,speedup_low,speedup_high,mat\noverall,vanilla,1,,,1\noverall,pld,1.5,1.4,1.6,2\n"
    (whole / "summary.csv").write_text(rows + "overall,sam,1.25,1.2,1.3,3\nqa,sam,9,8,10,9\n")
    manifest = json.loads((whole / MANIFEST).read_text())
    (whole / MANIFEST).write_text(json.dumps(manifest | {"suite": manifest["suite"] | {"cases": 12}}))
    grown = json.loads((results / "sweep/0" / MANIFEST).read_text()) | {"blocks": 70}
    (results / "sweep/0" / MANIFEST).write_text(json.dumps(grown))
    with (results / "stopped" / RECORDS).open("a") as file:
        file.write('{"half')
    (results / "latest").symlink_to(whole)
    assert commands.main(["list", str(results)]) == 0
    lines = {line.split()[2]: line for line in capsys.readouterr().out.splitlines() if line[1:3] == "20"}
    assert set(lines) == {"whole", "stopped", "sweep/0", "sweep/1"}
    assert lines["sweep/1"].split()[3] == "pld.num_draft=3"
    assert lines["sweep/0"].split()[3] == "pld.num_draft=unset"
    assert lines["whole"].split()[-5:] == ["pld", "1.50", "[1.40,", "1.60]", "complete"]
    assert "6 of 60 blocks" in lines["stopped"]
    assert "6 of 70 blocks" in lines["sweep/0"]
    (whole / "summary.csv").write_text("category,method,speedup\noverall,pld,x\n")
    assert commands.main(["list", str(results)]) == 0
    assert "summary.csv cannot be read" in capsys.readouterr().out
    assert commands.main(["list", str(results / "stopped")]) == 2
    assert "contains no run" in capsys.readouterr().err


def test_two_runs_are_the_same_or_say_where_not(make_run, capsys):
    one, two = make_run("one", per_category=1), make_run("two", per_category=1)
    manifest = json.loads((two / MANIFEST).read_text())
    manifest["config"].setdefault("decode", {})["temperature"] = 0.5
    (two / MANIFEST).write_text(json.dumps(manifest))
    lines = [json.loads(line) for line in (two / RECORDS).read_text().splitlines()]
    other = [line for line in lines if line["case"] == lines[0]["case"]]
    for line in other:
        line["turns"][0]["ids"][0] += 1
    (two / RECORDS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = read_run(one).records
    assert f"; {len(lines)} have the same tokens" in describe_equal(records, records)
    assert commands.main(["diff", str(one), str(two)]) == 0
    out = capsys.readouterr().out
    assert f"{len(lines)} records are in both" in out
    assert f"{len(lines) - len(other)} have the same tokens" in out
    assert "decode.temperature" in out


def test_two_methods_are_compared_by_factors_that_multiply_and_by_category(make_run, capsys):
    run = make_run("one", per_category=2)
    assert commands.main(["compare", "pld", "token_recycling", str(run)]) == 0
    out = capsys.readouterr().out
    assert re.match(rf"{run.name}: tiny on mini, \d+ cases", out)
    assert "speed: pld over token_recycling" in out
    cells = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    *factors, speedup = map(float, cells["pld"])
    assert math.prod(factors) == pytest.approx(speedup, rel=0.03)
    assert "translation" in cells
    unknown = ["pld", "vanilla", "--category", "transl"]
    for wrong, message in (
        (["pld", "tokn"], "tokn: no method"),
        (["pld", "pld"], "given twice"),
        (unknown, "--category transl: .* did you mean translation?"),
    ):
        assert commands.main(["compare", *wrong, str(run)]) == 2
        assert re.search(message, capsys.readouterr().err)


def test_the_ratio_of_a_category_has_an_interval_and_a_load_is_named(make_run, capsys):
    for name, edit, shown in (
        ("alone", None, (r"ratio \[95 %\]", r"qa +[\d.]+ +1\.00 +[\d.]+ \[[\d.]+, [\d.]+\]")),
        (
            "load",
            partial(serve, requests=4),
            (r"4 requests at once \(load=closed\)", r"speed of the server, in tokens/s: pld over vanilla [\d.]+ \["),
        ),
    ):
        run = make_run(name, per_category=8, edit=edit, peers=())
        assert commands.main(["compare", "pld", "vanilla", str(run)]) == 0
        out = capsys.readouterr().out
        assert all(re.search(text, out) for text in shown), out
    assert commands.main(["compare", "pld", "vanilla", str(run), "--category", "qa"]) == 0
    assert re.search(r"speed of each request: pld over vanilla [\d.]+$", capsys.readouterr().out, re.M)


@pytest.mark.parametrize("words", [["--help"], ["list"], ["report", "--no-plots"], ["compare", "pld", "vanilla"]])
def test_a_full_standard_output_is_named(make_run, capsys, monkeypatch, words):
    run = make_run(per_category=1)
    given = {"--help": [], "list": [str(run.parent)]}.get(words[0], [str(run)])
    with contextlib.suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails too
        monkeypatch.setattr("sys.stdout", full)
        code = commands.main([*words, *given])
        monkeypatch.undo()
    assert code == 1
    assert "standard output: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"config": {"suite": {"part": "1/2"}}}, ["part 1/2 of the suite"]),
        (
            {"warnings": [f"part {n}/2: load average is {n}.5 a core: times are unsafe" for n in (1, 2)]},
            ["part 1/2, 2/2: load average is 1.5 to 2.5 a core"],
        ),
    ],
)
def test_parts_are_named(make_run, capsys, changes, shown):
    def edit(manifest, records):
        manifest |= changes | {"config": manifest["config"] | changes.get("config", {})}

    run = make_run(per_category=2, edit=edit)
    assert commands.main(["report", str(run), "--no-plots"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert all(out.count(text) >= 1 for text in shown), out
    assert out.count("load average") == sum("load" in text for text in shown)


def test_a_run_without_published_figures_names_the_tables(make_run, capsys):
    assert commands.main(["report", "--published", str(make_run(per_category=1))]) == 0
    out = capsys.readouterr().out
    assert "*.csv" in out
    assert re.search(r"suite=spec_bench \(.*pld.*\): .*Token Recycling table 1", out)


@pytest.mark.parametrize("profile", [False, True])
@pytest.mark.parametrize("category", ["translation", "qa"])
def test_the_factors_of_a_category_are_those_of_a_run_of_it_alone(make_run, tmp_path, capsys, category, profile):
    """The records are drawn once, and the second run has those of the category."""

    def keep(manifest, records):
        records[:] = [each for each in records if each.category == category]
        numbers = {block: number for number, block in enumerate(sorted({each.block for each in records}))}
        for each in records:
            each.block = numbers[each.block]

    def forget(manifest, records):
        manifest["config"]["engine"]["kind"] = "replay"

    options = ["--profile", str(write_profile(FIT, tmp_path))] if profile else []
    every = make_run("every", per_category=9, edit=forget if profile else None)
    alone = make_run("alone", per_category=9, edit=lambda *run: (keep(*run), profile and forget(*run)))
    printed = []
    for run, chosen in ((every, ["--category", category]), (alone, []), (every, [])):
        assert commands.main(["compare", "pld", "token_recycling", str(run), *chosen, *options]) == 0
        lines = capsys.readouterr().out.splitlines()[1:]
        whole = "The times are unsafe", "With drafting at half and at twice"  # of the run's cases
        printed.append([line for line in lines if not line.startswith(whole)])
    one, other = ([re.findall(r"[\d.]+\d", line) for line in lines] for lines in printed[:2])
    for texts, others in zip(one, other, strict=True):  # a modelled drafting time is a mean of the run's cases
        assert list(map(float, texts)) == pytest.approx(list(map(float, others)), abs=0.011 * profile)
    assert printed[0][0] != printed[2][0]
    assert any(line.split()[:1] == ["ratio"] for line in printed[0])


def test_a_case_has_its_speedup_over_vanilla_in_the_same_round(make_run):
    def edit(manifest, records):
        fail(next(each for each in records if each.method == "pld"), "no")

    found = load(make_run(per_category=2, rounds=2, edit=edit, methods={"pld": (3.0, 0.5, 1e-3)}))
    cases = found.cases.set_index(["case", "round", "method"])
    assert (cases.xs("vanilla", level="method")["speedup"] == 1).all()
    failed = cases[~cases["ok"]]
    assert len(failed) == 1
    assert failed["speedup"].isna().all()
    for (case, number, _), row in cases[cases["ok"]].iterrows():
        vanilla = cases.loc[(case, number, "vanilla")]
        pace = vanilla["seconds"] / vanilla["tokens"]
        assert row["speedup"] == pytest.approx(pace / (row["seconds"] / row["tokens"]))


@pytest.mark.parametrize("kind", ["replay", "timed"])
def test_a_case_without_a_claimed_time_has_no_speedup(make_run, kind):
    def edit(manifest, records):
        manifest["config"]["engine"]["kind"] = kind

    cases = load(make_run(per_category=1, edit=edit)).cases
    assert cases["speedup"].isna().all()
    assert cases["mat"].notna().any()


def test_a_case_is_paired_in_its_own_run(make_run):
    runs = [make_run(f"sweep/{n}", per_category=1, seed=n) for n in range(2)]
    cases = load(runs[0].parent).cases
    alone = [load(run).cases["speedup"] for run in runs]
    assert cases["speedup"].tolist() == pytest.approx([value for each in alone for value in each], nan_ok=True)


@pytest.mark.parametrize("name", [name for name in commands.COMMANDS if name != "run"])
def test_help_is_plain_text_and_a_wrong_word_an_error(name, capsys, tmp_path, monkeypatch):
    """Every command has one form of an error; ``run`` has the help of Hydra."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        commands.main([name, "--help"])
    assert ended.value.code == 0
    assert "``" not in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(commands.main([name, "NOTHING", "--out", "x"] if name == "merge" else [name, "NOTHING"]))
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith(f"specbench {name}: error: ")


@pytest.mark.parametrize("name", ["report", "compare", "list"])
def test_a_folder_without_runs_says_what_to_do(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert commands.main([name, *(["a", "b"] if name == "compare" else [])]) == 2
    error = capsys.readouterr().err
    assert "there is no run here yet" in error or "no such folder; expected one that specbench wrote runs into" in error


def test_numbers_of_an_option_are_named(capsys):
    with pytest.raises(SystemExit):
        commands.main(["profile", "--k", "1,x"])
    assert "--k: got '1,x'; expected whole numbers, such as 1,8,32" in capsys.readouterr().err


def test_the_first_command_ends_with_the_next_ones(tmp_path):
    """``make bench`` in an environment whose ``specbench`` is a stand-in."""
    (tmp_path / "bin").mkdir()
    for name in ("bin/pip", "bin/python", "bin/specbench", "installed"):  # without a pip make would build it anew
        (tmp_path / name).write_text("#!/bin/sh\necho the report\n")
        (tmp_path / name).chmod(0o755)
    made = subprocess.run(
        ["make", "--no-print-directory", "bench", f"VENV={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    *_, activate, following = made.stdout.splitlines()
    assert "the report" in made.stdout
    assert activate.strip() == f". {tmp_path}/bin/activate"
    program, command, first, second = following.split()
    assert (program, command) == ("specbench", "compare")
    default = OmegaConf.load(ROOT / "conf/config.yaml")["defaults"]
    methods = next(each["method"] for each in default if "method" in each)
    assert {first, second} < set(methods)


@pytest.mark.parametrize(
    ("line", "shell", "wanted"),
    [
        ("specbench comp", "bash", ["compare", "completion"]),
        ("specbench 'method=[pld,suffix_dec", "bash", [f"method=[pld,suffix_decoding{end}" for end in ("", "_local")]),
        ("specbench method=[suffix_decoding,suffix_dec", "bash", ["[suffix_decoding,suffix_decoding_local"]),
        ("specbench run measure.lossless=", "zsh", ["measure.lossless=false", "measure.lossless=true"]),
        ("specbench method.pld.num", "zsh", ["method.pld.num_draft="]),
        ("specbench model=tiny su", "zsh", ["suite.", "suite="]),
        ("specbench report res", "zsh", []),
        ("specbench tune suite=mi", "bash", ["mini"]),
    ],
)
def test_the_tab_key_completes_commands_settings_and_options(line, shell, wanted):
    assert complete_line(line, shell) == wanted
    assert "_specbench" in completion.SCRIPTS[shell]


def test_what_a_run_reads_is_downloaded(monkeypatch, capsys):
    asked = []
    info = type("Info", (), {"siblings": [type("File", (), {"size": 3_000_000_000})]})
    monkeypatch.setattr(fetch.HfApi, "model_info", lambda *args, **kwargs: info)
    monkeypatch.setattr(fetch, "snapshot_download", lambda repo, **options: asked.append((repo, options)) or "cache")
    monkeypatch.setattr(fetch.constants, "HF_HUB_OFFLINE", False)
    given = [
        "fetch",
        "model.path=org/model",
        "model.draft=org/draft",
        "model.revision=v1",
        "model.heads.eagle=org/h",
    ]
    assert commands.main(given) == 0
    wanted = [("org/model", "v1"), ("org/draft", None), ("org/h", None)]
    assert [(repo, options["revision"]) for repo, options in asked] == wanted
    assert "3.0 GB" in capsys.readouterr().out
    monkeypatch.setattr(fetch.constants, "HF_HUB_OFFLINE", True)
    assert commands.main(given) == 2
    assert "unset it" in capsys.readouterr().err


def test_a_run_from_python_is_that_of_the_command(tmp_path, monkeypatch):
    """The same directory, so that a second call has nothing left to do; the functions are no modules of that name."""
    import specbench.runs.execution  # noqa: F401  (brings every module of a run)
    from specbench import run

    monkeypatch.chdir(tmp_path)
    given = ("model=tiny", "method=[pld]", "suite.limit=1", "decode.max_new_tokens=8", "measure=quick")
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


@pytest.mark.parametrize(("name", "target"), SCRIPTS.items())
def test_an_installed_script_reads_the_command_line(name, target, monkeypatch, capsys):
    """An entry point is called without arguments."""
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    try:
        code = pkgutil.resolve_name(target)()
    except SystemExit as end:
        code = end.code
    assert not code
    assert "--" in capsys.readouterr().out


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
            turn["phases_s"] = {name: factor * seconds for name, seconds in turn["phases_s"].items()}
            turn["step_s"] = [factor * seconds for seconds in turn.get("step_s", ())]

    return edit


def slower(path, factor):
    """Multiplies pld's times, by a little more in every second case."""
    records = path / RECORDS
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for number, line in enumerate(each for each in lines if each["method"] == "pld"):
        factor *= 1.02 if number % 2 else 1 / 1.02
        scale_times({"": factor})(line)
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("factor", "limits", "code", "verdicts"),
    [
        (1.0, ["mat<0.98", "speedup<0.95"], 0, {("mat<0.98", "pld"): "passes", ("speedup<0.95", "pld"): "passes"}),
        (2.0, ["mat<0.98", "speedup<0.95"], 1, {("mat<0.98", "pld"): "passes", ("speedup<0.95", "pld"): "fails"}),
        (2.0, ["tokens_per_s<.9"], 1, {("tokens_per_s<.9", "pld"): "fails", ("tokens_per_s<.9", "vanilla"): "passes"}),
        (0.5, ["prefill_ms<0.9"], 1, {("prefill_ms<0.9", "pld"): "fails"}),
        (2.0, ["prefill_ms>1.5", "prefill_ms>2.5"], 1, {("prefill_ms>1.5", "pld"): "fails"}),
    ],
)  # fmt: skip
def test_a_limit_on_the_ratio_of_two_runs_decides_the_exit_code(make_run, capsys, factor, limits, code, verdicts):
    one, two = make_run("one", per_category=4), make_run("two", per_category=4)
    slower(two, factor)
    assert commands.main(["diff", str(one), str(two), "--fail", *limits]) == code
    found, group = {}, ""
    for line in capsys.readouterr().out.partition("Limits.")[2].splitlines():
        words = line.split()
        group = words.pop(0) if words and re.search("[<>]", words[0]) else group  # which a table writes once
        found |= {(group, words[0]): line} if len(words) > 3 else {}
    for (limit, method), verdict in verdicts.items():
        line = found[limit, method]
        assert line.split()[-1] == verdict
        assert ("[" in line) == (method == "pld" and "mat" not in limit)  # equal figures have no interval


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


def violate(line):
    if line["method"] == "pld":
        line["lossless"]["violations"] = 1


def test_a_figure_that_was_zero_is_judged(make_run, capsys):
    one, two = make_run("one", per_category=1), make_run("two", per_category=1)
    given = ["diff", str(one), str(two), "--fail", "violations>1", "errors>1", "lossless<1", "loop_share>1"]
    assert commands.main([*given, "--strict"]) == 0
    assert "missing" not in capsys.readouterr().out
    change(two, violate)
    assert commands.main(given) == 1
    assert re.search(r"pld +0\.00 +6\.00 +inf +fails", capsys.readouterr().out)
    assert commands.main(["diff", str(two), str(one), "--fail", "violations>1"]) == 0  # 6 to 0


@pytest.mark.parametrize("column", ["tokens_per_s<0.9", "prefill_ms>1.1", "forward_ms>1.1", "draft_ms>1.1"])
def test_a_machine_that_became_slower_fails_vanilla_alone(make_run, capsys, column):
    one, two = make_run("one", per_category=2), make_run("two", per_category=2)
    change(two, scale_times({"": 1.25}))
    commands.main(["diff", str(one), str(two), "--fail", column])
    out = capsys.readouterr().out.partition("Limits.")[2]
    assert re.search(r"pld .* inconclusive", out)
    ratio = "0.800 [0.800, 0.800]" if "<" in column else "1.250 [1.250, 1.250]"
    assert f"{column[:-4]}: vanilla's own ratio is {ratio}" in out
    assert bool(re.search(r"vanilla .* fails", out)) == (column != "draft_ms>1.1")  # vanilla drafts nothing
    assert not re.search(r"pld .* fails", out)


def test_a_method_that_became_slower_on_a_faster_machine_fails(make_run, capsys):
    one, two = make_run("one", per_category=2), make_run("two", per_category=2)
    change(two, scale_times({VANILLA: 0.8, "pld": 1.25}))
    assert commands.main(["diff", str(one), str(two), "--fail", "tokens_per_s<0.9"]) == 1
    out = capsys.readouterr().out
    assert re.search(r"pld .* fails", out)
    assert "vanilla's own ratio is 1.250" in out


def test_times_of_cases_under_load_fail_no_limit(make_run, capsys):
    one, two = (make_run(name, per_category=4, edit=lambda *run: serve(*run, 4)) for name in ("one", "two"))
    change(two, scale_times({"pld": 2.0}))
    given = ["diff", str(one), str(two), "--fail", "speedup<0.9", "tokens_per_s<0.9"]
    assert commands.main(given) == 0
    out = capsys.readouterr().out.partition("Limits.")[2]
    assert len(re.findall(r"pld [^\[\n]* inconclusive", out)) == 2
    assert "slow each other" in out
    assert commands.main([*given, "--strict"]) == 1


@pytest.mark.parametrize("column", ["acceptance_rate", "cost_per_million", "mat_outside_loops", "target_compute"])
def test_a_quotient_of_sums_has_an_interval(make_run, column):
    """Every second case is changed, so a ratio of the case sums moves with the cases."""

    def edit(line):
        if int(line["case"][-1]) % 2 and line["method"] == "pld":
            scale_times({"pld": 1.3})(line)
            for turn in line["turns"]:
                for place, count in reversed([*enumerate(turn["accept"])]):
                    if count > 1:  # one step more for the same tokens
                        turn["accept"][place : place + 1] = [count - 1, 1]
                        for name in ("proposed", "depth", "fed"):
                            turn[name].insert(place, turn[name][place])

    price = {"measure": {"price_per_hour": 2.0}}
    one, two = make_run("one", per_category=4), make_run("two", per_category=4)
    change(one, lambda line: None, price)
    change(two, edit, price)
    found = [read_findings(find_runs([path])) for path in (one, two)]
    check = next(each for each in check_limits(found, [Limit.parse(f"{column}>9")]) if each.method == "pld")
    assert check.ratio.low is not None
    assert check.ratio.low <= check.ratio.value <= check.ratio.high
    assert check.ratio.value == pytest.approx(check.values[1] / check.values[0])


def test_an_undecided_limit_fails_only_when_strict(make_run, capsys):
    one, two = make_run("one", per_category=1), make_run("two", per_category=1)
    lines = [json.loads(line) for line in (two / RECORDS).read_text().splitlines()]
    error = {"type": "CaseError", "message": "no", "traceback": "", "turn": 0}
    failed = [line | {"status": "error", "turns": [], "error": error} for line in lines if line["method"] == "pld"]
    kept = {(line["case"], line["method"]): line for line in [*lines, *failed]}
    for line in failed:
        line.pop("lossless", None)
        line.pop("correct", None)
    (two / RECORDS).write_text("".join(json.dumps(line) + "\n" for line in kept.values()))
    given = ["diff", str(one), str(two), "--fail", "mat<0.9"]
    assert commands.main(given) == 0
    assert re.search(r"pld .* missing", capsys.readouterr().out)
    assert commands.main([*given, "--strict"]) == 1
    for wrong, message in (
        (["--fail", "efficiency<0.9"], "there is no interval of the column efficiency; expected one of cases, tokens"),
        (["--fail", "mta<0.9"], "--fail mta<0.9: there is no column mta; expected one of cases, tokens, steps, mat,"),
        (["--fail", "mat=0.9"], "--fail mat=0.9: expected COLUMN<RATIO or COLUMN>RATIO"),
        (["--fail", "mat<0"], "--fail mat<0: expected COLUMN<RATIO"),
        (["--fail", "cost_per_million>1"], "no method has cost_per_million in both runs"),
        (["--strict"], "--strict: is for limits"),
    ):
        assert commands.main(["diff", str(one), str(two), *wrong]) == 2
        assert message in capsys.readouterr().err
