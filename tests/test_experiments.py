"""Every experiment: its grid composes at full size, and at small size it runs and has what it
should show.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.types import RunMode

from builders.runs import composed, job_for
from specbench.records.record import PHASES, VANILLA
from specbench.records.store import read_run
from specbench.report.frames.findings import Findings, gather
from specbench.runs.composition import plain_values, spell_cell
from specbench.runs.digest import digest
from specbench.runs.entry import make_entry
from specbench.runs.execution import execute

CONF = Path(__file__).resolve().parent.parent / "conf"
CATEGORIES = {
    "overall",
    "multi-turn",
    "translation",
    "summarization",
    "qa",
    "math_reasoning",
    "rag",
    "code",
}
DEFAULT = [
    "pld",
    "suffix_decoding",
    "token_recycling",
    "speculative_sampling",
    "eagle3",
    "hf_generate",
]
EXPERIMENTS = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
# The other choices of an axis that changes what runs: each as a small run of its own.
CHOICES = {
    "card_table3 opt_tree": ["experiment/row=opt_tree"],
    "card_table3 eagle3": ["experiment/row=eagle3"],
    "card_table2 query": ["method.card.correct=false"],
    "n_grammys_figure2 unigram": ["experiment/strategy=unigram"],
    "n_grammys_figure2 extended": ["experiment/strategy=extended_bigram_3"],
}
SMALL = {name: [] for name in EXPERIMENTS} | CHOICES
# What is read off the run: file of tables/, method, what it must have of it.
EVIDENCE = {
    "cacheback_table1": ("accept_sources", "source", {"dynamic", "frozen"}),
    "card_figure6": ("own_figures", "figure", {"hits", "misses"}),
    "n_grammys_figure4": (
        "own_figures",
        "figure",
        {"rows_context", "rows_bigram", "accepted_rank_0", "won_context"},
    ),
    "takeoff_ssd": ("growth", "method", {"ssd"}),
}
GRIDS = {
    "cacheback_table1",
    "n_grammys_figure4",
    "card_table1_sampling",
    "spec_bench_leaderboard",
    "takeoff_ssd",
    "token_recycling_figure3a",
}


def cells(*overrides: str) -> tuple[dict[str, list[str]], list[list[str]]]:
    """The axes of a grid, key -> values, and all of its cells, as Hydra's sweeper makes them."""
    params = composed(*overrides).hydra.sweeper.params or {}
    parsed = OverridesParser.create().parse_overrides(
        [f"{key}={value}" for key, value in params.items()]
    )
    axes = {entry.key_or_group: [cell[0] for cell in product_of([entry])] for entry in parsed}
    return axes, product_of(parsed)


def product_of(parsed: list[Override]) -> list[list[str]]:
    """The overrides of every job."""
    return BasicSweeper.split_arguments(parsed, None)[0]


def values_of(*overrides: str) -> dict[str, Any]:
    """The settings of ``specbench OVERRIDES``, whose model the tests would otherwise replace by a
    smaller one.
    """
    return plain_values(composed("model=tiny_25m", *overrides))


def test_a_setting_changes_the_default_by_itself_alone():
    assert "  - model: tiny_25m " in (CONF / "config.yaml").read_text()
    plain = values_of()
    assert [*plain["method"]] == [*DEFAULT, VANILLA]
    assert (plain["suite"]["name"], plain["suite"]["limit"]) == ("mini", 3)
    assert plain["method"]["pld"]["num_draft"] == 3
    plain["suite"]["limit"] = 1
    assert values_of("suite.limit=1") == plain
    plain["method"]["pld"]["num_draft"] = 10
    assert values_of("method.pld.num_draft=10", "suite.limit=1") == plain


def test_the_default_s_sizes_are_of_its_model_and_its_methods():
    other, named = plain_values(composed("model=tiny")), values_of("method=[pld]")
    assert other["method"]["pld"]["num_draft"] == named["method"]["pld"]["num_draft"] == 10
    assert [*other["method"]] == [*DEFAULT, VANILLA]
    head = plain_values(composed("method=[eagle3]", "model=llama3_1_8b"))
    assert [*head["method"]] == ["eagle3", VANILLA]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in GRIDS else pytest.mark.exhaustive)
        for name in EXPERIMENTS
    ],
)
def test_grid_at_full_size(name):
    """Each value of each axis composes, is a run of its own, and has methods whose parameters are
    right.
    """
    base = f"experiment={name}"
    axes, grid = cells(base)
    assert bool(axes) == (len(grid) > 1)
    config = composed(base)
    assert config.hydra.mode == (RunMode.MULTIRUN if axes else None)
    if axes:
        assert config.hydra.sweep.dir == f"results/{name}"
    hashes = []
    for value in [value for values in axes.values() for value in values] or [base]:
        plain = plain_values(composed(base, value))
        assert "bundled" not in str(plain["model"])
        assert plain["suite"]["name"] != "mini" or [*plain["method"]] == [VANILLA]
        for method, node in plain["method"].items():
            make_entry(method, node)
        hashes.append(digest(plain))
    # The base is the first value of every axis, or a value of it.
    assert len(set(hashes)) >= max(len(hashes) - max(len(axes) - 1, 0), 1)
    small = composed(base, "+size=small")  # no axis is left, on the command line or in the file
    assert (small.hydra.mode, small.hydra.sweeper.params) == (RunMode.RUN, None)
    assert spell_cell(small).startswith(f"size=small: one cell of {name}, ")


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """Run a small experiment in this process."""

    def run(*overrides: str, tokens: int) -> Findings:
        job = job_for(
            *overrides, "+size=small", "measure.warmup=0", f"decode.max_new_tokens={tokens}"
        )
        directory = tmp_path_factory.mktemp("small")
        execute(job, directory, lambda *_: None)
        return gather([read_run(directory)])

    return run


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "n_grammys_figure4" else pytest.mark.exhaustive)
        for name in SMALL
    ],
)
def test_small_size_has_every_cell(name, small_run):
    """Every method in every category: decoded, finite, without an error, and the target's own
    tokens.
    """
    overrides = (f"experiment={name.split()[0]}", *SMALL[name])
    methods = plain_values(composed(*overrides, "+size=small"))["method"]
    findings = small_run(*overrides, tokens=12 if name in EVIDENCE else 5)
    rows = findings.summary
    assert set(zip(rows["method"], rows["category"], strict=True)) == {
        (method, category) for method in methods for category in CATEGORIES
    }
    assert len(rows) == len(methods) * len(CATEGORIES)
    assert (rows["errors"] == 0).all()
    figures = rows[["cases", "tokens", "steps", "mat", "tokens_per_s", "speedup"]]
    assert ((figures > 0) & np.isfinite(figures)).all(axis=None)
    assert (rows["mat"] >= 1).all()
    drafts = rows[~rows["method"].isin([VANILLA, "hf_generate"])]
    assert np.isfinite(drafts[["target_compute", *(f"{phase}_ms" for phase in PHASES)]]).all(
        axis=None
    )
    greedy = findings.facts[0].temperature == 0
    assert (rows["lossless"] == 1).all() if greedy else rows["lossless"].isna().all()
    if name in EVIDENCE:
        table, column, wanted = EVIDENCE[name]
        assert wanted <= set(findings.detail[table][column])


def test_command_line_wins_over_an_experiments_axis():
    """An axis given by hand takes the place of the file's, so that part of a grid can be run."""
    axes, _ = cells("experiment=n_grammys_figure3")
    swept = [
        f"{key}={','.join(value.partition('=')[2] for value in values)}"
        for key, values in axes.items()
    ]
    given = OverridesParser.create().parse_overrides([*swept, "model=mistral_7b", "suite=mt_bench"])
    assert len(product_of(given)) == 5 * 7
