"""What is published: the package's metadata and its extras, and the files that a host, a citation
and an image read.
"""

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
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import specbench

ROOT = Path(__file__).resolve().parent.parent
SOURCE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SOURCE["project"]
EXTRAS = PROJECT["optional-dependencies"]
REPOSITORY = PROJECT["urls"]["Repository"]
# of apache.org/licenses/LICENSE-2.0.txt
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
TEXTS = (
    "*.md",
    "*.py",
    "*.yaml",
    "*.yml",
    "*.toml",
    "*.json",
    "*.ipynb",
    "Dockerfile",
    "Makefile",
    "run",
)
PLACES = (
    "docs",
    "specbench",
    "methods",
    "conf",
    "scripts",
    "tests",
    "notebooks",
    ".ci",
    ".github",
    ".devcontainer",
)
INSTALLED = re.compile(
    r"(?:\bspecbench|(?<=['\" ])\.)\[([\w.,-]+)\]|\bEXTRAS *\??=\s*([\w,-]+)|--extra[= ]([\w-]+)"
)

pytestmark = pytest.mark.skipif(
    not (ROOT / "docs").is_dir(), reason="docs/ is not next to an installed package"
)


def extras_in(text: str) -> set[str]:
    """The extras that a text installs, in the forms of pip, make and uv."""
    return {name for found in INSTALLED.findall(text) for name in "".join(found).split(",")}


def text_files() -> Iterator[Path]:
    yield from (path for form in TEXTS for path in ROOT.glob(form))
    yield from (path for place in PLACES for form in TEXTS for path in (ROOT / place).rglob(form))


def test_extras_have_the_names_that_every_pip_finds():
    """pip 23.2 finds an extra only by the name in the metadata, where it is in the normal form of
    PEP 685.
    """
    assert [name for name in EXTRAS if canonicalize_name(name) != name] == []
    for wrong in ("pip install '.[a_b]'", "'specbench[dev,a_b]'", "EXTRAS=dev,a_b"):
        assert extras_in(wrong) - {"dev"} == {"a_b"}


def test_what_texts_and_messages_install_exists():
    here = Path(__file__).resolve()
    named = {
        path: extras_in(path.read_text(encoding="utf-8")) for path in text_files() if path != here
    }
    assert not {
        str(path.relative_to(ROOT)): wrong
        for path in named
        if (wrong := named[path] - EXTRAS.keys())
    }
    assert {*EXTRAS} == named[ROOT / "README.md"], "README.md lists the extras"


def test_the_metadata_name_licence_authors_and_repository(tmp_path, monkeypatch):
    """As the wheel has them: PEP 639 has a licence's expression and file, and no classifier."""
    build = pytest.importorskip("hatchling.build", reason="hatchling is not installed")
    monkeypatch.chdir(ROOT)
    folder = tmp_path / build.prepare_metadata_for_build_wheel(str(tmp_path))
    found = email.message_from_bytes((folder / "METADATA").read_bytes())
    assert (found["License-Expression"], found.get_all("License-File")) == (
        "Apache-2.0",
        ["LICENSE"],
    )
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    assert found["Author"] == "The specbench authors"
    assert {*found.get_all("Provides-Extra")} == EXTRAS.keys()
    assert not [name for name in found.get_all("Classifier") if name.startswith("License")]
    assert all(
        url.partition(", ")[2].startswith(REPOSITORY) for url in found.get_all("Project-URL")
    )
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["repository-code"] == REPOSITORY
    assert (citation["license"], citation["version"]) == (
        found["License-Expression"],
        found["Version"],
    )
    assert found["Version"] == specbench.__version__


def test_workflows_call_what_is_there_with_few_rights():
    """Actions of others are pinned to a commit; a job that writes names what it may write."""
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    lines = []
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        flow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert flow["permissions"] == {"contents": "read"}, path.name
        steps = [step for job in flow["jobs"].values() for step in job.get("steps", [job])]
        for used in (step["uses"] for step in steps if "uses" in step):
            assert (
                (ROOT / used).is_file()
                if used.startswith("./")
                else re.search(r"@[0-9a-f]{40}$", used)
            ), used
        lines += [step["run"] for step in steps if "run" in step]
    assert (
        {words[1] for line in lines if (words := line.split())[0] == "make"}
        == {"dist", "docs", "test-all"}
        <= targets
    )
    assert ".ci/run" in lines
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_the_image_has_what_the_wheel_is_made_of():
    """Neither the Dockerfile nor .dockerignore leaves out a folder of the wheel."""
    parts = {
        *SOURCE["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"],
        "README.md",
        "LICENSE",
    }
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert parts <= copied
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert parts | {"pyproject.toml"} == {line[1:] for line in ignored if line.startswith("!")}


def test_the_lock_file_is_of_these_requirements_and_of_the_public_index():
    """``uv lock`` writes it."""
    text = (ROOT / "uv.lock").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://([^/\"]+)", text)) == {"pypi.org", "files.pythonhosted.org"}
    [own] = [each for each in tomllib.loads(text)["package"] if each["name"] == PROJECT["name"]]
    listed = {
        (each["name"], SpecifierSet(each.get("specifier", "")))
        for each in own["metadata"]["requires-dist"]
    }
    wanted = map(
        Requirement,
        [*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)],
    )
    assert listed == {(canonicalize_name(each.name), each.specifier) for each in wanted}
    assert {*own["metadata"]["provides-extras"]} == EXTRAS.keys()
