"""README and the index name all pages, every link leads to a file, and tables follow the code that they list."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from doc_tables import TABLES, page_with_table
from site_pages import FORMULA, on_page_markdown

ROOT = Path(__file__).resolve().parent.parent
README, ARCHITECTURE = ROOT / "README.md", ROOT / "docs/architecture.md"

pytestmark = pytest.mark.skipif(not ARCHITECTURE.is_file(), reason="docs/ is not beside an installed package")


def words(*pages: Path) -> set[str]:
    """Every name, with its suffix and without, that the pages hold."""
    found = set(re.findall(r"[\w.]+", "\n".join(page.read_text(encoding="utf-8") for page in pages)))
    return found | {name.rpartition(".")[0] for name in found}


@pytest.mark.parametrize("place", ["docs/*.md", "results/*", "*.md"])
def test_every_page_is_named(place):
    names = {path.name if path.suffix else path.stem for path in ROOT.glob(place) if path.name[0] not in "_."}
    if place == "results/*":  # what runs leave there belongs to the user
        names &= {"published", "profiles", "README.md"}
    assert names
    known = words(README, ARCHITECTURE, ROOT / "docs/README.md")
    assert names <= known, names - known


def test_the_site_has_every_page_in_the_order_of_the_index():
    def pages(entry):
        return [entry] if isinstance(entry, str) else [page for part in entry for page in pages(part)]

    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    nav = pages([each if isinstance(each, str) else [*each.values()] for each in settings["nav"]])
    linked = re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs/README.md").read_text(encoding="utf-8"))
    assert nav == ["README.md", *linked]
    assert sorted(nav) == sorted(path.name for path in ROOT.glob("docs/*.md"))
    rows = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(methods/(\w+\.md)\)", rows)) == {path.name for path in ROOT.glob("docs/methods/*.md")}


def test_the_site_has_no_link_out_of_its_folder():
    text = "[a](../b.py), [c\nd](../../e/f.md#g), [h](i.md), [j](../k.md#l)"
    page = SimpleNamespace(file=SimpleNamespace(src_uri="methods/m.md"))
    assert on_page_markdown(text, page=page) == "[a](../b.py), c\nd, [h](i.md), [j](../k.md#l)"
    page.file.src_uri = "m.md"
    assert on_page_markdown(text, page=page) == "a, c\nd, [h](i.md), j"


def test_formulas_are_told_from_variables_of_a_shell():
    text = '`$TMPDIR` and `$HOME`, $n$ a\n\n$$ a\n+ b $$ "${REPLAY[@]}" "$LINE" $(specbench $A)\n $q_t$.'
    assert [found[0] for found in FORMULA.finditer(text)] == ["$n$", "$$ a\n+ b $$", "$q_t$"]


def test_links_lead_somewhere():
    for page in (README, *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/README.md")):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


@pytest.mark.parametrize("page", TABLES)
def test_tables_of_the_docs_follow_the_code(page):
    """``python tests/doc_tables.py`` writes them."""
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == page_with_table(page)
