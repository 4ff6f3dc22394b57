"""The leaderboard of a real model that anyone can repeat: ``python -m scripts.leaderboard``.

SmolLM2-135M-Instruct (4 bits, from a package index) answers the 480 questions of Spec-Bench once,
without drafts. Every method that drafts from the context alone is replayed along these answers, at
the size of its paper: exact, and the same on every machine. Methods that read the target decode a
few questions of each category. The best ten are timed at the sizes that pay on this machine. Each
part is a run of specbench that continues where it stopped; at the end the tables of
docs/leaderboard.md and results/leaderboard/ are written anew.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from specbench import Result, load, run
from specbench.records.record import CONTROL, OVERALL, VANILLA
from specbench.report.label import format_bounded

ROOT = Path(__file__).resolve().parents[1]
PAGE, OUT = ROOT / "docs" / "leaderboard.md", ROOT / "results" / "leaderboard"
PUBLISHED = ROOT / "results" / "published" / "spec_bench_leaderboard_2025-04-22.csv"
MODEL = ("model=smollm2_135m_q4", "suite=spec_bench")
TOGETHER = ("load=closed", "load.requests=8", "load.block=48", "load.ramp=1", "load.tokens=4096")
FROM_CONTEXT = (
    *("pld", "pld_vllm", "pld_llama_simple", "pld_llama_cache", "sam", "suffix_decoding"),
    *("suffix_decoding_local", "ssd", "cacheback_no_frozen", "n_grammys_trie", "ngram_mod"),
    *("ngram_map_k", "ngram_map_k4v", "hybrid"),
)
READING = ("token_recycling", "logit_spec", "lookahead", "jacobi")
TIMED = (
    *("pld", "sam", "suffix_decoding", "hybrid", "logit_spec", "cacheback_no_frozen"),
    *("n_grammys_trie", "ngram_map_k4v", "token_recycling", "ssd"),
)
CATEGORIES = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")
PLOTS = ("radar", "mat_by_category")
CONTEXT_ONLY = "method.n_grammys_trie.strategy=context"  # the other strategies read the target


def main(arguments: Sequence[str]) -> int:
    """Run what is missing and write the tables; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.leaderboard", description=__doc__)
    add = parser.add_argument
    add("--runs", type=Path, default=ROOT / "results", help="folder of the four runs")
    add("--reading", type=int, default=10, metavar="N", help="questions of a category, live")
    add("--timed", type=int, default=4, metavar="N", help="questions of a category, timed")
    add("--write", action="store_true", help="only write the tables of the runs that are there")
    given = parser.parse_args(arguments)
    places = {
        name: given.runs / f"leaderboard_{name}"
        for name in ("answers", "context", "reading", "timed")
    }
    if not given.write:
        for name, settings in list_runs(places["answers"], given.reading, given.timed).items():
            print(f"leaderboard: {name}", flush=True)
            run(*settings, f"hydra.run.dir={places[name]}")
    write_results({name: load(place) for name, place in places.items() if place.is_dir()}, places)
    return 0


def list_runs(answers: Path, reading: int, timed: int) -> dict[str, list[str]]:
    """The settings of each run. answers: the folder of the first. reading, timed: questions of a
    category.
    """
    quick = ("measure=quick", "measure.keep_trees=0", "report.plots=false")
    return {
        "answers": [*MODEL, "decode.max_new_tokens=256", "method=[]", *quick, *TOGETHER],
        "context": [
            *("model=replay", f"model.trace={answers}", CONTEXT_ONLY, "decode=recorded"),
            f"method=[{','.join(FROM_CONTEXT)}]",
        ],
        "reading": [
            *(*MODEL, *quick, f"suite.limit={reading}", "decode.max_new_tokens=256"),
            *("engine.max_nodes=256", f"method=[{','.join(READING)}]"),
        ],
        "timed": [
            *(*MODEL, "measure=quick", f"suite.limit={timed}", "decode.max_new_tokens=64"),
            *("engine.max_nodes=auto", CONTEXT_ONLY, f"method=[{','.join(TIMED)}]"),
        ],
    }


def write_results(found: dict[str, Result], places: dict[str, Path]) -> None:
    """Write the figures of the runs that are there into the page and the folder of results."""
    OUT.mkdir(exist_ok=True)
    text = PAGE.read_text(encoding="utf-8")
    for name in ("context", "reading", "timed"):
        if name not in found:
            continue
        rows = found[name].summary
        rows.to_csv(OUT / f"{name}.csv", index=False)
        table = timed_table(rows) if name == "timed" else mat_table(rows)
        text = put(text, name, table)
        if name != "timed":
            text = put(text, f"{name} by category", category_table(rows))
    for plot in PLOTS:
        if (made := places["context"] / "plots" / f"{plot}.png").is_file():
            shutil.copy(made, OUT / f"{plot}.png")
    PAGE.write_text(text, encoding="utf-8")
    print(f"leaderboard: {PAGE}, {OUT}")


def put(text: str, name: str, table: str) -> str:
    """Replace the part of the page between the marks of this name. Raises ValueError without
    them.
    """
    mark, end = f"<!-- {name}: written by scripts/leaderboard.py -->", "<!-- end -->"
    if mark not in text:
        raise ValueError(f"{PAGE}: lacks the line {mark}")
    return re.sub(
        re.escape(mark) + ".*?" + re.escape(end),
        lambda _: f"{mark}\n\n{table}\n{end}",
        text,
        count=1,
        flags=re.DOTALL,
    )


def mat_table(rows: pd.DataFrame) -> str:
    """Methods by MAT: the figures that a replay knows, and the papers' MAT on Vicuna-7B."""
    papers = read_papers()
    lines = []
    for row in best_first(rows, "mat"):
        known = papers.get(row["method"], "")
        lines.append(
            (
                f"`{row['method']}`",
                format_bounded(row["mat"], row["mat_low"], row["mat_high"]),
                f"{row['mat_outside_loops']:.2f}",
                f"{row['tokens_fed']:.2f}",
                f"{100 * row['acceptance_rate']:.1f} %",
                f"{1e3 * (row['draft_ms'] + row['update_ms']):.0f}",
                known,
            )
        )
    titles = (
        "method",
        "MAT",
        "outside loops",
        "tokens fed",
        "accepted",
        "drafting \N{MICRO SIGN}s",
    )
    return markdown((*titles, "Vicuna-7B"), lines)


def category_table(rows: pd.DataFrame) -> str:
    """MAT by task, in the order of the overall MAT."""
    mats = rows.pivot_table(index="method", columns="category", values="mat", observed=True)
    lines = [
        (f"`{row['method']}`", *(f"{mats.at[row['method'], name]:.2f}" for name in CATEGORIES))
        for row in best_first(rows, "mat")
    ]
    return markdown(("method", *CATEGORIES), lines)


def timed_table(rows: pd.DataFrame) -> str:
    """Methods by measured speedup, with the nodes that pay here."""
    lines = [
        (
            f"`{row['method']}`",
            f"{row['nodes']:.0f}",
            f"{row['mat']:.2f}",
            format_bounded(row["speedup"], row["speedup_low"], row["speedup_high"]),
            f"{row['tokens_per_s']:.1f}",
        )
        for row in best_first(rows, "speedup")
    ]
    return markdown(("method", "nodes", "MAT", "speedup", "tokens/s"), lines)


def best_first(rows: pd.DataFrame, figure: str) -> list[dict[str, Any]]:
    """The rows of all questions, without the baseline, the best first."""
    own = rows[(rows["category"] == OVERALL) & ~rows["method"].isin([VANILLA, CONTROL])]
    return own.sort_values(figure, ascending=False, kind="stable").to_dict("records")


def read_papers() -> dict[str, str]:
    """Method -> 'MAT, speedup' on Vicuna-7B in Spec-Bench's leaderboard of an A100."""
    rows = pd.read_csv(PUBLISHED, dtype={"printed": str})
    rows = rows[rows["table"].str.contains("A100") & rows["model"].str.contains("7b")]
    rows = rows[rows["category"].isin([OVERALL]) & rows["method"].notna()]
    printed = rows.pivot_table(index="method", columns="metric", values="printed", aggfunc="first")
    found = {name: f"{row['mat']}, {row['speedup']}" for name, row in printed.iterrows()}
    return found | {"token_recycling": found.get("token_recycling_hot", "")}


def markdown(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table whose figures are set to the right."""
    rule = "|---|" + "--:|" * (len(titles) - 1)
    return "\n".join(
        ["| " + " | ".join(titles) + " |", rule, *("| " + " | ".join(row) + " |" for row in lines)]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
