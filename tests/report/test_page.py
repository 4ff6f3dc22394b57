"""The page's text: the leaderboard without a script, the token view's data, and nothing recorded
that can break out.
"""

import base64
import io
import json
import re
from functools import partial

import numpy as np
import pytest
from PIL import Image
from report.conftest import THREE, build_run

from builders.drafts import draw_records
from builders.records import record, turn
from builders.reports import found_in
from specbench.records.record import CONTROL, VANILLA
from specbench.records.store import Run, read_run
from specbench.report import build_report, read_findings
from specbench.report.page.tokens import (
    MOST_ANSWERS,
    MOST_CASES,
    MOST_TOKENS,
    OWN,
    embed,
    sample_cases,
    token_data,
    token_section,
)
from specbench.report.tokenizer import (
    PIECES,
    find_tokenizer,
    read_pieces,
    read_tokenizer,
    spell_ids,
)

EVIL = "</script><img src=x onerror=alert(1)>"


def drawn(manifest, records):
    draw_records(
        records, 3, {"pld": ("context", EVIL), "token_recycling": ("table",)}, ("hf_assisted",)
    )


def draw_only(manifest, records, cases=3):
    draw_records(records, cases, {}, ("hf_assisted",))


def data_of(text):
    return json.loads(
        re.search(r'<script type="application/json" id="token-data">(.*?)</script>', text, re.S)[1]
    )


def rows_of(text, table=0):
    body = re.findall(r'<table class="sortable board">(.*?)</table>', text, re.S)[table]
    return re.findall(r"<tr (.*?)>(.*?)</tr>", body, re.S)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Not to be changed."""
    directory = build_run(
        tmp_path_factory.mktemp("page") / "run", THREE, per_category=2, edit=drawn
    )
    return build_report([directory], plots=False)


def text_of(report):
    return (report.output / "report.html").read_text("utf-8")


def test_the_leaderboard_is_the_summary_without_a_script(page):
    rows = rows_of(text_of(page))
    assert len(rows) == 7 * 5
    shown = [cells for attributes, cells in rows if "hidden" not in attributes]
    assert len(shown) == 5
    assert '<span class="chip">reference</span>' in shown[0]
    assert '<span class="chip">control</span>' in shown[1]
    assert 'id="board-filters" hidden' in text_of(page)
    mats = page.summary.set_index(["category", "method"])["mat"]
    bold = set()
    for attributes, cells in rows:
        category = re.search('data-category="(.*?)"', attributes)[1]
        name = re.sub(
            "<.*?>", "", re.search('<td class="name">(.*?)</td>', cells)[1].split("<span")[0]
        ).strip()
        method = CONTROL if name == "vanilla (A/A)" else name
        values = [float(found) for found in re.findall('data-v="(.*?)"', cells)]
        assert values[1] == pytest.approx(mats[category, method], rel=1e-5)
        bold |= {(category, method)} if re.search(r"<td[^>]*><b>", cells) else set()
    assert {"qa", "rag"} <= {category for category, _ in bold}
    assert CONTROL not in {method for _, method in bold}


def test_recorded_text_cannot_break_out_and_only_the_pages_script_runs(page):
    text = text_of(page)
    assert EVIL not in text
    assert EVIL in data_of(text)["sources"]
    assert text.count("</script>") == 2
    assert json.loads(embed({"a": f"{EVIL}&amp;"})) == {"a": f"{EVIL}&amp;"}
    policy = re.search('http-equiv="Content-Security-Policy" content="(.*?)"', text_of(page))[1]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_data_says_who_drafted_each_token(page):
    data = data_of(text_of(page))
    [case] = [case for case in data["cases"] if case["case"] == "multi-turn-0"]
    answers = {answer["name"]: answer for answer in case["answers"]}
    records = page.findings.runs[0].records
    [recorded] = [each for each in records if (each.case, each.method) == ("multi-turn-0", "pld")]
    turns = answers["pld"]["turns"]
    assert len(turns) == len(recorded.turns) == 2
    assert any(count > 2 for each in recorded.turns for count in each.accept)
    for found, wanted in zip(turns, recorded.turns, strict=True):
        assert [data["ids"][number] for number in found["ids"]] == wanted.ids
        assert len(found["by"]) == sum(wanted.accept)
        names = iter(found["by"])
        for count, packed, tree in zip(wanted.accept, found["trees"], wanted.trees, strict=True):
            *given, own = [next(names) for _ in range(count)]
            assert own == OWN
            assert [data["sources"][number] for number in given] == (["context", EVIL] * count)[
                : count - 1
            ]
            if tree["tokens"]:
                assert [data["ids"][number] for number in packed["t"]] == tree["tokens"]
                assert data["shapes"][packed["p"]] == tree["parents"]
                assert packed["a"] == tree["path"]
    kinds = {name: answer["kind"] for name, answer in answers.items()}
    assert kinds == {VANILLA: "reference", "pld": "", "token_recycling": "", "hf_assisted": "peer"}
    prompts = {case["category"]: case["prompt"] for case in data["cases"]}
    # a second turn's was not recorded
    assert prompts == {"multi-turn": "", "translation": "<11><12><13>"}


def test_drafts_beyond_the_room_are_left_out_and_counted(page):
    cases = sample_cases(page.findings)
    whole, cut = token_data(cases), token_data(cases, tree_bytes=4000)
    turns = [
        turn for case in cut["cases"] for answer in case["answers"] for turn in answer["turns"]
    ]
    left = [tree for turn in turns for tree in turn["trees"]]
    assert whole["trees_left_out"] == 0
    assert cut["trees_left_out"] == sum(tree is None for tree in left) > 0
    drafts = sum(len(json.dumps(tree, separators=(",", ":"))) for tree in left if tree)
    assert 2000 < drafts < 4500
    assert len(cut["cases"][0]["answers"][1]["turns"][0]["by"]) > 0


@pytest.mark.parametrize("cases", [0, 1])
def test_at_least_three_cases_are_shown(make_run, cases):
    """Cases without drafts, as ``measure=quick`` records all but one, are shown by step."""
    findings = read_findings([make_run(per_category=2, edit=partial(draw_only, cases=cases))])
    data = token_data(sample_cases(findings))
    assert [case["case"] for case in data["cases"]] == [
        "multi-turn-0",
        "multi-turn-1",
        "translation-0",
    ]
    drawn = [
        any(turn["trees"] for answer in case["answers"] for turn in answer["turns"])
        for case in data["cases"]
    ]
    assert drawn == [cases > 0, False, False]
    assert ("No drafts were recorded" in token_section(sample_cases(findings))) is (cases == 0)


def test_a_late_chains_token_is_drafted(make_run):
    """Marked by step, even where its draft is left out."""

    def edit(manifest, records):
        draw_only(manifest, records)
        for each in records:
            if each.method == "pld" and each.block == 0:
                each.turns[0].trees[2]["late"] = True

    cases = sample_cases(read_findings([make_run(per_category=1, edit=edit)]))
    for found in (token_data(cases), token_data(cases, tree_bytes=0)):
        late = {
            a["name"]: [turn["late"] for turn in a["turns"]] for a in found["cases"][0]["answers"]
        }
        assert late["pld"] == [[2], []]
        assert late[VANILLA] == [[], []]


def test_what_a_page_cannot_hold_is_left_out_and_counted(make_manifest):
    def sampled(cases, names, made):
        methods = (VANILLA, *names)
        pairs = [(block, case, method) for block, case in enumerate(cases) for method in methods]
        records = [record(name, case, [made], block=block) for block, case, name in pairs]
        found = sample_cases(found_in(records, make_manifest({name: {} for name in names})))
        return [
            (case.case, [answer.name for answer in case.answers], case.left_out) for case in found
        ]

    names = [f"m{number}" for number in range(MOST_ANSWERS + 5)]
    cases = [f"c{number}" for number in range(MOST_CASES + 5)]
    tree = {"tokens": [1], "parents": [-1], "path": [0]}
    shown = [VANILLA, *names][:MOST_ANSWERS]
    assert sampled(cases, names, turn([2], [1], trees=[tree])) == [
        (case, shown, 6) for case in cases[:MOST_CASES]
    ]
    long, endless = turn([1] * (MOST_TOKENS // 3)), turn([1] * (MOST_TOKENS + 1))
    assert sampled(["c"], ["one", "two", "three"], long) == [("c", [VANILLA, "one"], 2)]
    assert sampled(["c"], [], endless) == [("c", [VANILLA], 0)]


def test_pieces_are_kept_next_to_the_run_and_used_without_its_tokenizer(make_run, tmp_path):
    bundled = {"config": {"model": {"path": "bundled:tiny"}, "engine": {"kind": "eager"}}}
    directory = make_run(per_category=1, manifest=bundled, edit=drawn)
    build_report([directory], plots=False)
    kept = read_pieces(read_run(directory))
    assert " the" in kept.values()
    assert "tokenizer was not found" not in (directory / "report.html").read_text("utf-8")
    assert kept[0] == "<|pad|>"
    elsewhere = json.loads((directory / "manifest.json").read_text())
    elsewhere["config"]["model"]["path"] = "/nowhere"
    run = Run(directory, elsewhere, [])
    assert spell_ids(run, [0, 10**6]) == {0: "<|pad|>", 10**6: "<1000000>"}
    assert read_pieces(Run(directory, elsewhere | {"config_hash": "another"}, [])) == {}
    build_report([directory], tmp_path / "other", plots=False)
    assert not (tmp_path / "other" / PIECES).exists()


@pytest.mark.parametrize("text", ["", "[]", '{"pieces": 3, "config_hash": "0a1b2c3d"}', "\xff"])
def test_damaged_pieces_are_not_used(make_run, text):
    directory = make_run(per_category=1)
    (directory / PIECES).write_text(text, encoding="latin-1")
    assert spell_ids(read_run(directory), [7]) == {7: "<7>"}


def test_pieces_spell_a_text_again(make_run):
    bundled = {"config": {"model": {"path": "bundled:tiny"}}}
    run = read_run(make_run(per_category=0, manifest=bundled))
    tokenizer = read_tokenizer(find_tokenizer(run))
    text = "The cats returned a list:\n    def f(x): return 'x'"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = spell_ids(run, ids)
    assert "".join(pieces[token] for token in ids).lstrip() == text


def test_pictures_are_light_and_alike(built):
    """A picture of the page shows the same as the file next to it, in a third of the bytes."""
    text = text_of(built)
    pictures = [
        base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,(.*?)"', text)
    ]
    files = [path for path in built.files if path.suffix == ".png"]
    assert len(pictures) == len(files)
    assert sum(map(len, pictures)) < 0.6 * sum(path.stat().st_size for path in files)
    for data, path in zip(pictures, files, strict=True):
        shown, drawn = (
            np.asarray(Image.open(each).convert("RGB")).astype(int)
            for each in (io.BytesIO(data), path)
        )
        assert shown.shape == drawn.shape
        assert np.abs(shown - drawn).mean() < 1.5


@pytest.mark.exhaustive
def test_a_thousand_cases_of_ten_methods_stay_small(tmp_path):
    methods = {f"method_{number}": (6.0 * (number + 1), 0.5, 1e-3) for number in range(10)}

    def edit(manifest, records):
        draw_records(records, 3, dict.fromkeys(methods, ("context", "table")), ())
        manifest["suite"]["cases"] = len({record.case for record in records})

    run = build_run(tmp_path / "run", methods, per_category=167, edit=edit)
    report = build_report([run], plots=False)
    assert len(report.findings.runs[0].records) > 10_000
    assert (report.output / "report.html").stat().st_size < 5_000_000
