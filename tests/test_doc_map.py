"""The file maps of README and docs/architecture.md name what there is, and link to what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README, ARCHITECTURE = ROOT / "README.md", ROOT / "docs/architecture.md"

pytestmark = pytest.mark.skipif(not ARCHITECTURE.is_file(), reason="docs/ is not beside an installed package")


def words(*pages: Path) -> set[str]:
    """Every name, with its suffix and without, that the pages hold."""
    found = set(re.findall(r"[\w.]+", "\n".join(page.read_text(encoding="utf-8") for page in pages)))
    return found | {name.rpartition(".")[0] for name in found}


@pytest.mark.parametrize("place", ["scripts/*.py", "notebooks/*.ipynb"])
def test_both_maps_name_every_entry_point(place):
    names = {path.stem for path in ROOT.glob(place)}
    assert names
    assert names <= words(README), names - words(README)
    assert names <= words(ARCHITECTURE), names - words(ARCHITECTURE)


@pytest.mark.parametrize("place", ["specbench/*", "specbench/report/*", "docs/*.md", "results/*", "*.md"])
def test_every_file_of_a_room_is_named(place):
    found = [path for path in ROOT.glob(place) if not path.name.startswith(("_", "."))]
    names = {path.name if path.suffix not in (".py", "") else path.stem for path in found}
    if place == "results/*":  # what runs leave there is not ours
        names &= {"published", "profiles", "README.md"}
    assert names
    known = words(README, ARCHITECTURE)
    assert names <= known, names - known


def test_links_lead_somewhere():
    for page in (README, *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/README.md")):
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"
