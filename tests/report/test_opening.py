"""The first screen of the page, and how the page is laid out around it."""

import html
import re
from pathlib import Path

import pytest
from report.conftest import build_run, fail_one

from specbench.records.record import CONTROL, Lossless
from specbench.records.store import read_run
from specbench.report import build_report, gather
from specbench.report.frames.headline import find_headlines
from specbench.report.page import page as page_module
from specbench.report.page.opening import opening

# cases per category with which the control is steady
FAST, SLOW, STEADY = (8.0, 0.9, 1e-4), (4.0, 0.05, 4e-2), 9
CSS = Path(page_module.__file__).with_name("page.css").read_text("utf-8")


def differ(manifest, records):
    [record, *_] = (record for record in records if record.method == "pld" and record.block == 5)
    record.turns[0].ids = [1, *record.turns[0].ids[1:]]
    record.lossless = Lossless(False, [0, 0], 40, 1, 3, 0.75)


def scale(record, by):
    """Makes a record take more or less time."""
    for turn in record.turns:
        turn.prefill_s, turn.decode_s = turn.prefill_s * by, turn.decode_s * by
        turn.phases_s = {name: seconds * by for name, seconds in turn.phases_s.items()}


def retime(even, odd):
    """An edit of the control's times: by a factor in every second block, by another in the
    others.
    """

    def edit(manifest, records):
        for record in records:
            if record.method == CONTROL:
                scale(record, odd if record.block % 2 else even)

    return edit


def compete(manifest, records):
    manifest["warnings"] = ["load average is 3.1 a core: other processes compete, times are unsafe"]


def read_page(folder, edit=None, methods=None, **options):
    methods = methods or {"pld": FAST, "slow": SLOW}
    run = build_run(folder / "run", methods, edit=edit, **{"per_category": STEADY} | options)
    report = build_report([run], plots=False)
    return report, (report.output / "report.html").read_text("utf-8")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    """A report without a fault, and its page."""
    return read_page(tmp_path_factory.mktemp("quiet"))


def test_all_well_is_one_quiet_line(quiet):
    _, text = quiet
    body = text.partition("<main>")[2]
    assert body.count('class="verdicts"') == 1
    assert 'class="alert' not in body
    [line] = re.findall('<p class="verdicts">(.*?)</p>', body, re.S)
    words = " ".join(re.sub("<[^>]*>", " ", line).split())
    assert re.match(
        r"Lossless all ids equal vanilla&#39;s A/A control [\d.]+, steady Errors none", words
    )
    assert body.index('class="headline"') < body.index('class="verdicts"') < body.index("<section")


@pytest.mark.parametrize(
    ("edit", "tone", "words"),
    [
        (fail_one, " bad", "Failed cases: pld 1 of 54"),
        (differ, " bad", "Not lossless: pld has vanilla's output in 98.1 % of its cases"),
        (
            retime(1.05, 1.05),
            " bad",
            "The times are unsafe: vanilla against itself differs by up to",
        ),
        (retime(1.05, 0.95), "", "The times are unsafe: vanilla against itself differs by up to"),
        (compete, "", "The times are unsafe: other processes competed for the processor."),
    ],
    ids=["failed", "not lossless", "control differs", "control varies", "other processes"],
)
def test_what_is_wrong_is_loud_once(tmp_path, edit, tone, words):
    """And not repeated: further words on it are in what is folded."""
    _, text = read_page(tmp_path, edit)
    body = text.partition("<main>")[2]
    assert re.findall('class="alert(.*?)"', body) == [tone]
    assert body.index('class="alert') < body.index('class="headline"')
    shown = html.unescape(
        re.sub("<[^>]*>", "", re.sub('<details class="fold">.*?</section>', "", body, flags=re.S))
    )
    assert shown.count(words) == 1
    assert shown.count("vanilla against itself") <= 1


def test_factors_make_the_speedup(quiet):
    report, text = quiet
    [block] = re.findall('<dl class="factors">(.*?)</dl>', text, re.S)
    speedup, tokens, cost, prefills = map(float, re.findall(r"<dd>([\d.]+)</dd>", block))
    row = report.summary.query("category == 'overall' and method == 'pld'").iloc[0]
    assert (speedup, tokens) == (round(row["speedup"], 2), round(row["mat"], 2))
    assert tokens / cost == pytest.approx(row["decode_speedup"], rel=0.01)
    assert tokens / cost * prefills == pytest.approx(speedup, rel=0.02)
    assert re.findall('data-sign="(.)"', block) == ["=", "÷", "×"]


@pytest.mark.parametrize(
    ("categories", "methods", "words"),
    [
        (("qa", "rag"), {"a": FAST}, "a is faster than vanilla on all 2 categories, least on qa ("),
        (("qa", "rag"), {"a": SLOW}, "Slower than vanilla on qa (0."),
        (("qa",), {"a": FAST}, None),
    ],
)
def test_where_the_best_loses(tmp_path, categories, methods, words):
    _, text = read_page(tmp_path, methods=methods, categories=categories)
    [*found] = re.findall('<p class="losses">(.*?)</p>', text)
    assert len(found) == (words is not None) == text.count('<figure class="dots">')
    assert all(words in losses for losses in found)


@pytest.mark.parametrize("count", [2, STEADY])
def test_another_method_is_ahead_only_beyond_chance(tmp_path, count):
    """With enough cases to tell; with fewer the figures are compared, and the sentence warns of
    chance.
    """

    def edit(manifest, records):  # b has vanilla's times but on rag, where it is faster than a
        for record in records:
            if (record.method, record.category) == ("b", "rag"):
                scale(record, 0.1)

    methods = {"a": FAST, "b": (0.0, 0.0, 0.0)}
    run = build_run(
        tmp_path / "run", methods, categories=("qa", "rag"), per_category=count, edit=edit
    )
    findings = gather([read_run(run)])
    [headline] = find_headlines(findings)
    text = opening(findings, [headline])
    best = headline.ranking[0]["method"]
    assert (f"Another method is ahead on {'rag (b' if best == 'a' else 'qa (a'}") in text
    assert ("Fewer than 8 cases each: chance moves these figures." in text) is (count == 2)


def test_contents_link_all_sections_and_rare_ones_come_last_and_folded(tmp_path):
    _, text = read_page(tmp_path, differ)
    headings = re.findall(r"<(h[1-6])\b", text)
    assert headings[0] == "h1"
    assert set(headings[1:]) == {"h2"}
    parts = text.split("<section ")[1:]
    sections = [re.search('id="(.*?)"', part)[1] for part in parts]
    links = re.findall('<a [^>]*href="#(.*?)"', text)
    assert links[: len(sections)] == sections
    assert set(links) == set(sections)  # the line of verdicts links the warnings
    folded = [name for name, part in zip(sections, parts, strict=True) if 'class="fold"' in part]
    assert folded == sections[-len(folded) :]
    assert {"leaderboard", "why", "speedup-by-category", "token-by-token"}.isdisjoint(folded)
    assert {"warnings", "lossless", "audit", "environment", "what-each-number-means"} <= set(folded)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_contrast(scheme):
    """WCAG 2.2, AA: at least 4.5 for text."""
    colours = dict(
        re.findall(r"--([\w-]+): (#\w{6})", CSS.split(":root")[1 + scheme].partition("}")[0])
    )
    backs = dict.fromkeys(("ink", "soft", "link", "good", "warn", "bad"), ("back", "card"))
    backs |= {"warn": ("warn-back",), "bad": ("bad-back",)}
    for ink, grounds in backs.items():
        for ground in (*grounds, "band", "pick") if ink == "ink" else grounds:
            light, dark = sorted((luminance(colours[name]) for name in (ink, ground)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, ground)


@pytest.fixture(scope="module")
def wide_report(tmp_path_factory):
    """Long names, many methods and categories, and something wrong."""
    methods = {f"a_rather_long_method_name_{number}": FAST for number in range(10)}
    categories = tuple(f"a_rather_long_category_{number}" for number in range(16))
    options = {"methods": methods, "categories": categories, "per_category": 1}
    run = build_run(tmp_path_factory.mktemp("wide") / "run", edit=compete, **options)
    return build_report([run], plots=False).output / "report.html"


@pytest.mark.parametrize("width", [320, 800, 2000])
def test_nothing_is_wider_than_the_screen(browser, wide_report, width):
    browser.open(wide_report, width, 844)
    assert browser.run("document.documentElement.scrollWidth") == width
    browser.run("document.querySelectorAll('details').forEach(node => node.open = true)")
    assert browser.run("document.documentElement.scrollWidth") == width
    outside = browser.run(
        "[...document.querySelectorAll('main h2, main p, main figure, .scroll')]"
        ".filter(node => node.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert outside == 0


def test_a_printed_page_has_what_is_folded(browser, wide_report):
    browser.open(wide_report, 1000, 900)
    shown = (
        "document.querySelector('#environment dt').checkVisibility({contentVisibilityAuto: true})"
    )
    assert not browser.run(shown)
    browser.send("Emulation.setEmulatedMedia", media="print")
    try:
        assert browser.run(f"document.body.offsetHeight; {shown}")
        assert not browser.run("document.querySelector('nav').checkVisibility()")
    finally:
        browser.send("Emulation.setEmulatedMedia", media="")
