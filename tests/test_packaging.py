"""What is published: the package's metadata and its extras, and the files that a host, a citation and an image read."""

from __future__ import annotations

import email
import hashlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import specbench
from builders.runs import method_names, settings_of
from specbench.runs.entry import make_entry

ROOT = Path(__file__).resolve().parent.parent
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SOURCE["project"]
EXTRAS = PROJECT["optional-dependencies"]
REPOSITORY = PROJECT["urls"]["Repository"]
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"  # of apache.org/licenses/LICENSE-2.0.txt
TEXTS = ("*.md", "*.py", "*.yaml", "*.yml", "*.toml", "*.json", "*.ipynb", "Dockerfile", "Makefile", "run")
PLACES = ("docs", "specbench", "methods", "conf", "scripts", "tests", "notebooks", ".ci", ".github", ".devcontainer")
INSTALLED = re.compile(r"(?:\bspecbench|(?<=['\" ])\.)\[([\w.,-]+)\]|\bEXTRAS *\??=\s*([\w,-]+)|--extra[= ]([\w-]+)")

pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="docs/ is not next to an installed package")


def extras_in(text: str) -> set[str]:
    """The extras that a text installs, in the forms of pip, make and uv."""
    return {name for found in INSTALLED.findall(text) for name in "".join(found).split(",")}


def text_files() -> Iterator[Path]:
    yield from (path for form in TEXTS for path in ROOT.glob(form))
    yield from (path for place in PLACES for form in TEXTS for path in (ROOT / place).rglob(form))


def test_extras_have_the_names_that_every_pip_finds():
    """pip 23.2 finds an extra only by the name in the metadata, where it is in the normal form of PEP 685."""
    assert [name for name in EXTRAS if canonicalize_name(name) != name] == []
    for wrong in ("pip install '.[ort_genai]'", "'specbench[dev,ort_genai]'", "EXTRAS=dev,ort_genai"):
        assert extras_in(wrong) - {"dev"} == {"ort_genai"}


def test_what_texts_and_messages_install_exists():
    here = Path(__file__).resolve()
    named = {path: extras_in(path.read_text(encoding="utf-8")) for path in text_files() if path != here}
    assert not {str(path.relative_to(ROOT)): wrong for path in named if (wrong := named[path] - EXTRAS.keys())}
    assert {*EXTRAS} == named[ROOT / "README.md"], "README.md lists the extras"
    methods = [make_entry(name, settings_of(name)).method for name in method_names()]
    assert {each.extra for each in methods if hasattr(each, "extra")} == {"ort-genai", "openvino-genai", "ctranslate2"}
