"""The architecture, held by a test: who imports whom (``rooms.py``), and how long a file and a function may be."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from doc_tables import DOCS, TABLES, page_with_table
from rooms import ROOMS, ROOT, allowed_rooms, imported_rooms, imports_of, module_of, room_of, sources, tree_of

MOST_LINES, MOST_CODE_LINES = 300, 40


def test_every_module_has_a_room():
    assert {module_of(path) for path in sources() if room_of(module_of(path)) is None} == set()


def test_every_room_has_a_module():
    assert set(ROOMS) - {room_of(module_of(path)) for path in sources()} == set()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_its_rule_says(room):
    """Neither more, nor less: a permission that nobody uses says something false about the room."""
    assert imported_rooms(room) == allowed_rooms(room)


def test_no_room_is_below_itself():
    def below(room: str, seen: set[str]) -> set[str]:
        for each in allowed_rooms(room) - seen:
            seen.add(each)
            below(each, seen)
        return seen

    assert {room for room in ROOMS if room in below(room, set())} == set()


def test_libraries_stay_where_they_belong():
    for path in sources():
        room = room_of(module_of(path))
        libraries = {name.split(".")[0] for name in imports_of(path)}
        assert not libraries & set(ROOMS[room].never.split()), path
        assert room in ("composition", "cli", "sweep") or "hydra" not in libraries, path
        assert not path.is_relative_to(ROOT / "specbench") or "methods" not in libraries, path


def test_a_method_imports_no_other_method():
    for path in sources():
        if path.is_relative_to(ROOT / "methods"):
            own = path.relative_to(ROOT / "methods").parts[0].removesuffix(".py")
            others = {name.split(".")[1] for name in imports_of(path) if name.startswith("methods.")}
            assert others <= {"parts", own}, path


def test_files_are_short_and_say_what_they_are():
    for path in sources():
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= MOST_LINES, path
        assert not text or ast.get_docstring(tree_of(path)), path
        assert path.stem not in ("utils", "helpers", "common"), path


def test_functions_are_short():
    """Of the lines below the docstring."""
    for path in [*sources(), *(ROOT / "scripts").rglob("*.py")]:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = node.end_lineno - body[0].lineno + 1 if body else 0
                assert lines <= MOST_CODE_LINES, f"{path}: {node.name} has {lines} lines"


def test_functions_nest_at_most_three_deep():
    """A line above that begins with ``# Nests deeper:`` gives the reason of an exception."""
    for path in sources():
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                excused = first > 1 and text.splitlines()[first - 2].strip().startswith("# Nests deeper:")
                assert excused or _depth(node) <= 3, f"{path}: {node.name} nests {_depth(node)} deep"


def _depth(node: ast.AST) -> int:
    """Blocks within each other; an ``elif`` is none of its own."""
    deepest = 0
    for field, held in ast.iter_fields(node):
        for each in held if isinstance(held, list) else [held]:
            if isinstance(each, ast.AST):
                chained = isinstance(node, ast.If) and field == "orelse" and isinstance(each, ast.If)
                block = isinstance(each, (ast.If, ast.For, ast.While, ast.With, ast.Try)) and not chained
                deepest = max(deepest, _depth(each) + block)
    return deepest


def test_scripts_are_thin():
    for path in (ROOT / "scripts").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 80, path


def test_no_class_name_is_used_twice():
    """But private ones, and the classes that a method's own package has."""
    seen: dict[str, Path] = {}
    for path in sources():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert node.name not in seen, f"{node.name}: {path} and {seen[node.name]}"
                seen[node.name] = path


@pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is not beside an installed package")
@pytest.mark.parametrize("page", TABLES)
def test_tables_of_the_docs_follow_the_code(page):
    """``python tests/doc_tables.py`` writes them."""
    assert (DOCS / page).read_text(encoding="utf-8") == page_with_table(page)
