"""The page as a reader meets it: rendered, clicked and typed at in a real browser."""

import json

import pytest
from report.conftest import THREE, build_run, manifest_of, write_run

from builders.drafts import draw_records
from builders.records import record, turn
from specbench.report import build_report
from specbench.report.tokenizer import PIECES

EVIL = "</script><img src=x onerror=alert(1)>"
PHONE, WIDE = 360, 1200


def hostile(manifest, records):
    """Drafts, and text that tries to break out wherever a record can hold any."""
    draw_records(
        records, 3, {"pld": ("context", EVIL), "token_recycling": ("table",)}, ("hf_assisted",)
    )
    manifest["warnings"] = [EVIL]
    for each in records:
        if each.block == 0:
            each.case = f"multi-turn-0 {EVIL}"
            each.turns[0].ids[0] = 4
            each.turns[-1].prompt_ids, each.turns[-1].prompt_tokens = [4, 5], 2


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    directory = build_run(
        tmp_path_factory.mktemp("page") / "run", THREE, per_category=2, edit=hostile
    )
    pieces = {str(token): f" w{token}" for token in range(5, 900)} | {"4": EVIL, "7": "\n"}
    kept = json.dumps({"config_hash": "0a1b2c3d", "pieces": pieces})
    (directory / PIECES).write_text(kept, encoding="utf-8")
    return build_report([directory])


@pytest.fixture
def page(browser, report):
    """The page, freshly loaded; whatever it complained about fails the test."""
    browser.troubles.clear()
    browser.open(report.output / "report.html", WIDE)
    yield browser
    assert browser.run("document.querySelectorAll('img:not(.plots img)').length") == 0
    assert browser.troubles == []


def column(page, number, board=0):
    """The cells in a column of the leaderboard's visible rows."""
    return page.run(
        f"[...document.querySelectorAll('table.board')[{board}].tBodies[0].rows].filter(row =>"
        f" !row.hidden).map(row => row.cells[{number}].firstChild.textContent)"
    )


def chosen(page, pane=0):
    """(turn, index) of the chosen token."""
    return page.run(
        "(() => { const node ="
        f" document.querySelectorAll('.pane')[{pane}].querySelector('[aria-selected=true]'); return"
        " [Number(node.dataset.turn), Number(node.dataset.index)]; })()"
    )


def facts(page, pane=0):
    """Name -> value of the facts shown about a token."""
    return dict(
        page.run(
            f"[...document.querySelectorAll('.pane')[{pane}].querySelectorAll('.facts > div')]"
            ".map(pair => [...pair.children].map(part => part.textContent))"
        )
    )


def select(page, selector, value):
    page.run(
        f"(() => {{ const node = document.querySelector({json.dumps(selector)}); node.value ="
        f" {json.dumps(value)}; node.dispatchEvent(new Event('change', {{bubbles: true}})); }})()"
    )


def test_columns_sort_by_click_and_by_key(page, report):
    mats = [float(value) for value in column(page, 2)]
    page.point("table.board th:nth-child(3) .sort")
    assert [float(value) for value in column(page, 2)] == sorted(mats, reverse=True) != mats
    assert (
        page.run("document.querySelector('table.board th:nth-child(3)').ariaSort") == "descending"
    )
    page.run("document.querySelector('table.board th:nth-child(3) .sort').focus()")
    page.press("Enter")
    assert [float(value) for value in column(page, 2)] == sorted(mats)
    assert page.run("document.querySelectorAll('th[aria-sort]').length") == 1


def test_every_column_can_be_sorted_and_blanks_stay_last(page):
    header = page.run(
        "[...document.querySelectorAll('table.board th')].findIndex(th =>"
        " /Acceptance/.test(th.textContent))"
    )
    for _ in range(2):
        page.point(f"table.board th:nth-child({header + 1}) .sort")
        values = column(page, header)
        assert values[-3:] == ["–"] * 3  # vanilla, its control, and a method with its own loop
        assert "–" not in values[:-3]


def test_leaderboard_filters_by_category(page, report):
    select(page, "[data-filter=category]", "rag")
    rows = report.summary[report.summary["category"] == "rag"]
    assert sorted(column(page, 2)) == sorted(f"({value:.2f})" for value in rows["mat"])  # few cases
    assert page.run("document.getElementById('board-status').textContent") == "5 rows"
    page.point("table.board th:nth-child(3) .sort")
    assert len(column(page, 2)) == 5
    select(page, "[data-filter=category]", "overall")
    assert len(column(page, 2)) == 5


def test_tokens_are_moved_through_by_keyboard(page, report):
    page.run("document.querySelector('.token[tabindex=\"0\"]').focus()")
    page.press("Home")
    assert chosen(page) == [0, 0]
    assert "prefill" in facts(page)["From"]
    page.press("ArrowRight")
    assert chosen(page) == [0, 1]
    assert facts(page)["Step"] == "0"
    page.press("ArrowDown")
    assert facts(page)["Step"] == "1"
    assert facts(page)["Position"].startswith("1 of")
    page.press("ArrowUp")
    assert chosen(page) == [0, 1]
    page.press("End")
    last = chosen(page)
    page.press("ArrowRight", "ArrowDown")
    assert chosen(page) == last
    page.press("Home", *["ArrowDown"] * 200)  # past the end of the first turn, step by step
    assert chosen(page)[0] == 1
    page.press(*["ArrowUp"] * 400)
    assert chosen(page) == [0, 0]
    assert page.run("document.activeElement.getAttribute('aria-selected')") == "true"


def test_facts_of_a_token_are_the_records(page, report):
    select(page, ".pane select", "pld")
    [recorded] = [
        each for each in report.findings.runs[0].records if (each.block, each.method) == (0, "pld")
    ]
    page.run("document.querySelector('.pane [tabindex=\"0\"]').focus()")
    page.press("Home", "ArrowRight")
    turn = recorded.turns[0]
    for step in range(min(12, len(turn.accept))):
        found = facts(page)
        assert (found["Step"], found["Accepted"]) == (str(step), str(turn.accept[step] - 1))
        assert found["Proposed"].split(",")[0] == str(turn.proposed[step])
        assert found["Rows fed"] == str(turn.fed[step])
        drafted = turn.accept[step] > 1
        assert found["From"] == ("drafted by context" if drafted else "the target's own")
        nodes = page.run(
            "[...document.querySelector('.pane').querySelectorAll('.node')].map(node =>"
            " node.textContent)"
        )
        assert len(nodes) == turn.proposed[step]
        marked = [text for text in nodes if text.startswith("✓")]
        assert len(marked) == turn.accept[step] - 1
        page.press("ArrowDown")


def test_panes_follow_one_place_and_hover_shows_another(page):
    assert page.run("document.querySelectorAll('.pane').length") == 2
    page.point(".pane .token[data-turn='0'][data-index='3']")
    assert chosen(page, 0) == chosen(page, 1) == [0, 3]
    page.point(".pane .token[data-turn='0'][data-index='1']", click=False)
    assert facts(page)["Token"].startswith("1:")
    assert chosen(page) == [0, 3]
    page.point("h1", click=False)
    assert facts(page)["Token"].startswith("3:")


def test_a_late_chain_hangs_from_the_draft_that_it_continues(browser, tmp_path):
    """Whole drafts with a late token behind them, and behind no draft: shown in words, not by
    colour alone.
    """
    chain = {"tokens": [2, 3], "parents": [-1, 0], "path": [0, 1], "late": True}
    trees = [chain, {"tokens": [], "parents": [], "path": [], "late": True}]
    ids = list(range(1, 6))
    records = [
        record("vanilla", "a", [turn([1] * 4, ids=ids)]),
        record("card", "a", [turn([3, 1], [2, 0], ids=ids, trees=trees)]),
    ]
    directory = write_run(tmp_path / "run", manifest_of({"card": {}}), records)
    browser.troubles.clear()
    browser.open(build_report([directory], plots=False).output / "report.html", WIDE)
    select(browser, ".pane select", "card")
    browser.run("document.querySelector('.pane .token').focus()")
    browser.press("Home", "ArrowRight")
    nodes = (
        "[...document.querySelectorAll('.pane')[0].querySelectorAll('.tree li .node')].map(node =>"
        " node.textContent)"
    )
    message = "document.querySelector('.pane .tree p').textContent"
    assert browser.run(nodes) == ["✓<2>", "✓<3>", "✓<4> (late)"]
    assert "2 accepted (✓), and one of the late chain" in browser.run(message)
    assert facts(browser)["Accepted"] == "2, and 1 late"
    browser.press("ArrowDown")
    assert facts(browser)["From"] == "drafted late, while the target ran"
    assert browser.run(nodes) == ["✓<5> (late)"]
    assert browser.run(message) == "Nothing was drafted in this step."
    assert "drafted late" in browser.run("document.querySelector('.legend').textContent")
    assert browser.troubles == []


def test_hostile_text_stays_text_and_another_case_is_shown(page):
    assert EVIL in page.run("document.querySelector('.pane .tokens').textContent")
    assert EVIL in page.run("document.querySelector('.legend').textContent")
    assert EVIL in page.run("document.querySelector('#token-view select').textContent")
    assert EVIL in page.run("document.querySelector('#token-prompt pre').textContent")
    assert page.run("document.scripts.length") == 2
    first = page.run("document.querySelector('.pane .tokens').textContent")
    select(page, "#token-view select", "2")
    assert page.run("document.querySelector('.pane .tokens').textContent") != first
    # one turn in each of two panes
    assert page.run("document.querySelectorAll('.pane .turn').length") == 2
    assert page.run("document.querySelector('#token-prompt pre').textContent") == " w11 w12 w13"


def test_panes_of_another_run_give_way(browser, tmp_path):
    """Cases of several suites: what is shown answered the case, as long as there is anyone who
    did.
    """
    other = {"suite": {"name": "other", "cases": 6, "turns": 7, "sha256": "cd" * 32}}
    runs = [
        build_run(
            tmp_path / "one", {"pld": (4.0, 0.3, 1e-3), "sam": (9.0, 0.8, 1e-3)}, per_category=1
        ),
        build_run(tmp_path / "two", {"rest": (4.0, 0.4, 1e-3)}, per_category=1, manifest=other),
    ]
    browser.troubles.clear()
    browser.open(build_report(runs, plots=False).output / "report.html", WIDE)
    titles = browser.run(
        "[...document.querySelector('#token-view select').options].map(option =>"
        " option.textContent)"
    )
    place = next(number for number, title in enumerate(titles) if "on other" in title)
    shown = "[...document.querySelectorAll('.pane select')].map(select => select.value)"
    assert set(browser.run(shown)) == {"pld", "sam"}
    select(browser, "#token-view select", str(place))
    assert set(browser.run(shown)) == {"rest", "vanilla"}
    select(browser, ".pane select", "pld")  # asked for by name, it is shown as missing
    assert "no finished answer" in browser.run("document.querySelector('.pane').textContent")
    assert browser.troubles == []


def test_steps_and_drafts_are_distinguished_without_colour(page):
    select(page, ".pane select", "pld")
    styles = page.run(
        "['.pane .token.own', '.pane .token.drafted', '.pane .step']"
        ".map(name => getComputedStyle(document.querySelector(name)))"
        ".map(style => [style.fontWeight, style.borderBottomColor, style.borderLeftWidth])"
    )
    own, drafted, step = styles
    assert own[0] == "700" != drafted[0]
    assert own[1] == "rgba(0, 0, 0, 0)" != drafted[1]
    assert float(step[2].removesuffix("px")) >= 2
    lines = page.run(
        "[...document.querySelectorAll('.legend .from')].map(node =>"
        " getComputedStyle(node).borderBottomStyle)"
    )
    assert len(set(lines)) == len(lines) == 3


@pytest.mark.matrix
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, WIDE])
def test_page_fits_phone_and_screen_in_both_schemes(browser, report, width, scheme):
    browser.troubles.clear()
    browser.open(report.output / "report.html", width, 740, scheme)
    assert browser.run("document.documentElement.scrollWidth") == width
    colours = browser.run(
        "['body', '.tokens', '.tree', '.alert'].map(name =>"
        " getComputedStyle(document.querySelector(name))).map(style => [style.color,"
        " style.backgroundColor].map(text => text.match(/\\d+/g).slice(0, 3).map(Number)).map(([r,"
        " g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b))"
    )
    for ink, back in colours:
        assert (ink > back + 120) if scheme == "dark" else (back > ink + 120)
    wide = browser.run(
        "[...document.querySelectorAll('.pane')].map(pane => pane.getBoundingClientRect().width)"
    )
    # one below the other, or side by side
    assert all((each > width / 2) == (width == PHONE) for each in wide)
    assert browser.troubles == []


def test_names_stay_next_to_their_figures_on_a_phone(browser, report):
    """A table that is wider than the phone scrolls under its first column."""
    browser.open(report.output / "report.html", PHONE, 740)
    moved = browser.run(
        "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth >"
        " box.clientWidth).map(box => { box.scrollLeft = 400; const name = box.querySelector('tbody"
        " tr:not([hidden]) td.name'); return name.getBoundingClientRect().left -"
        " box.getBoundingClientRect().left; })"
    )
    assert len(moved) > 3
    assert all(abs(left) < 1 for left in moved)


def test_without_a_script_the_tables_are_plain(browser, report):
    browser.send("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(report.output / "report.html", WIDE)
        assert len(column(browser, 2)) == 5
        assert not browser.run("document.getElementById('board-filters').checkVisibility()")
        assert "needs JavaScript" in browser.run(
            "document.querySelector('#token-by-token').innerText"
        )
    finally:
        browser.send("Emulation.setScriptExecutionDisabled", value=False)
