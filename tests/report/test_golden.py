"""Reports of typical runs read as the stored texts: the terminal, the Markdown tables and the words
of the page.

After an intended change, ``GOLDEN=write pytest tests/report/test_golden.py`` stores them anew; the
diff is the change.
"""

import html
import os
import re
from pathlib import Path

import pytest
from report.conftest import build_run, fail, printed, stretch_of

from builders.profiles import FIT
from specbench.profile import write_profile
from specbench.records.record import VANILLA, Lossless
from specbench.report import Report, build_report

FOLDER = Path(__file__).with_name("golden")
TRACE = (
    "answers: 12 conversations, 14 answers, 640 tokens; 13 of 14 answers have the recorded number"
    " of tokens"
)
TWO = {"pld": (4.0, 0.35, 4e-6), "sam": (20.0, 0.5, 9e-6)}
NO_WORDS = re.compile(r"<(script|style|svg|pre|dd)\b.*?</\1>|<tr [^>]*hidden.*?</tr>", re.S)


def replay(manifest, records):
    """The record of a replay: no lossless check, only the times of its own loop, sources of every
    draft.
    """
    manifest["config"]["engine"]["kind"] = "replay"
    manifest["trace"] = TRACE
    manifest["model"] |= {"dtype": "auto", "device": "cpu", "parameters": None}
    for each in records:
        each.lossless = None
        for own in each.turns:
            own.prefill_s = 1e-5
            own.phases_s |= {"forward": 1e-6 * len(own.accept), "update": 2e-6 * len(own.accept)}
            own.phases_s["draft"] = (0.0 if each.method == VANILLA else TWO[each.method][2]) * len(
                own.accept
            )
            own.decode_s = sum(own.phases_s.values())
            if each.method != VANILLA and sum(own.proposed):
                own.sources = {"dynamic": [3, 1], "static": [2, 0]}


def timed(manifest, records):
    """Records as engine=timed writes them; ``sam`` drafts from the model's results."""
    manifest["config"]["engine"]["kind"] = manifest["engine"] = "timed"
    manifest["trace"] = TRACE
    manifest["methods"]["sam"]["reads_target"] = True
    for each in records:
        each.lossless = None
        for own in each.turns:
            own.step_s = [own.decode_s / len(own.accept)] * len(own.accept)


def hurt(manifest, records):
    """A failed case, an answer beyond the tolerance, joules, and the recorded time of each step."""
    manifest["warnings"] = ["a warning"]
    manifest["control"] = True
    for each in records:
        for own in each.turns:
            own.energy_j = 2.0 * len(own.ids)
            own.step_s = [own.decode_s / max(1, len(own.accept))] * len(own.accept)
        if each.method == "pld" and each.block == 3:
            fail(each, "no")
        if each.method == "token_recycling" and each.block == 5:
            each.turns[0].ids = [1, *each.turns[0].ids[1:]]
            each.lossless = Lossless(False, [0, 0], 40, 1, 3, 0.75)


def fail_all(manifest, records):
    for each in records:
        fail(each, "no")


def fail_most(manifest, records):
    """Of a replay; a method with failed cases leads nothing."""
    replay(manifest, records)
    for each in [each for each in records if each.method == "sam"][3:]:
        fail(each, "no")


def lossy(manifest, records):
    manifest["methods"]["token_recycling"]["lossless"] = False


def trace(name):
    """An edit that makes a replay of another trace."""

    def change(manifest, records):
        replay(manifest, records)
        manifest["trace"] = TRACE.replace("13 of 14", f"{len(name)} of 14")
        manifest["config"]["model"] = {"trace": f"/somewhere/far/away/{name}.jsonl"}

    return change


def serve(requests):
    """Eight stretches of three requests, which end with the last; pld takes half of the time."""

    def change(manifest, records):
        slo = {"ttft_ms": 600.0}
        manifest["config"]["load"] = {
            "kind": "closed",
            "requests": requests,
            "rate": None,
            "slo": slo,
        }
        records.clear()
        for block in range(8):
            for method, seconds in ((VANILLA, 2.0), ("pld", 1.0 + 0.1 * (block % 2))):
                decode_s = seconds - 0.78  # the last prompt is read after 0.28 s, in 0.5 s
                records += stretch_of(method, block, seconds, 100, 3, requests, decode_s)

    return change


BIG = {"model": {"name": "big/model 7b", "dtype": "float16", "device": "cuda"}}
ONE = {"pld": TWO["pld"]}
REPLAYED = {"edit": replay, "methods": TWO, "control": False}
# Name -> the runs of the report: name -> options of ``build_run``.
RUNS = {
    "predicted": {"run": {"per_category": 9}},
    "hurt": {"run": {"edit": hurt, "control": False}},
    "lossy": {"run": {"edit": lossy, "per_category": 9}},
    "without_records": {"run": {"per_category": 0}},
    "all_failed": {"run": {"edit": fail_all, "per_category": 1}},
    "one_category": {"run": {"methods": ONE, "categories": ("qa",)}},
    "no_method": {"run": {"methods": {}, "per_category": 1}},
    "two_models": {"one": {"methods": ONE}, "two": {"methods": ONE, "manifest": BIG}},
    "sweep": {
        str(n): {"methods": ONE, "seed": n, "parameters": {"pld": {"n": n, "k": 1}}}
        for n in (1, 2, 3)
    },
    "replay": {"run": REPLAYED},
    "replay_with_failures": {"run": REPLAYED | {"edit": fail_most}},
    "replay_and_live": {"run": REPLAYED, "live": {"methods": TWO}},
    "replay_predicted": {"run": REPLAYED},
    "two_traces": {name: REPLAYED | {"edit": trace(name)} for name in ("first", "second")},
    "time_only": {"run": {"edit": timed, "methods": TWO}},
    "loads": {
        str(n): {"edit": serve(n), "methods": ONE, "control": False, "per_category": 1}
        for n in (2, 4)
    },
}


def read_page(report: Report) -> str:
    """The words of the page, a row of a table on one line; without the definitions and rows that a
    filter shows.
    """
    text = NO_WORDS.sub("", (report.output / "report.html").read_text("utf-8")).replace("<wbr>", "")
    text = re.sub('<img [^>]*alt="(.*?)"', r"[\1]<", text)
    lines = (
        " ".join(html.unescape(re.sub("<[^>]+>", " ", line)).split()) for line in text.splitlines()
    )
    return "\n".join(filter(None, lines))


def spell(report: Report) -> str:
    """All texts of a report."""
    files = sorted(
        path for path in report.files if path.suffix == ".md" or path.name == "overall.tex"
    )
    names = "\n".join(sorted(str(path.relative_to(report.output)) for path in report.files))
    texts = {"files": names, "terminal": printed(report.findings, load=report.load)}
    texts |= {path.name: path.read_text("utf-8") for path in files} | {"page": read_page(report)}
    found = "\n".join(f"==== {name}\n{text}" for name, text in texts.items())
    return "\n".join(line.rstrip() for line in found.splitlines()) + "\n"


@pytest.mark.parametrize("name", ["built", *RUNS])
def test_a_report_reads_as_stored(name, request, tmp_path):
    if name == "built":
        report = request.getfixturevalue("built")
    else:
        named = {run: {"per_category": 2} | options for run, options in RUNS[name].items()}
        runs = [build_run(tmp_path / run, **options) for run, options in named.items()]
        options = (
            {"profile": write_profile(FIT, tmp_path), "concurrency": (1, 8)}
            if "predicted" in name
            else {}
        )
        report = build_report(runs, tmp_path / "out", plots=False, **options)
    path, found = FOLDER / f"{name}.txt", spell(report)
    if os.environ.get("GOLDEN") == "write":
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text("utf-8")
