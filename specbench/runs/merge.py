"""The command ``specbench merge SHARDS... --out RUN``: the parts of a run, made anywhere, become the run.

A block is copied as it was written, but for its number and the shard that measured it: pairing stays inside the block,
so every ratio is the one that was measured. Records are read one at a time, and written in the order of the plan.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from specbench.input import InputError
from specbench.measure.plan import LASTING
from specbench.names import printable
from specbench.records.store import (
    MANIFEST,
    RECORDS,
    RunError,
    due,
    parse_lines,
    point_latest,
    read_manifest,
    replacing,
    rows_of,
    write_atomically,
)
from specbench.runs.digest import decisive, find_difference
from specbench.runs.part import join_parts, join_places, part_numbers
from specbench.screen import FAILED, fail

FIX = "restore it, or make the part again"
_BLOCK = re.compile(rb'"block":\s*\d+')  # in a text of a record a quotation mark has a backslash in front
_Print = Callable[[Mapping[str, Any]], Any]

# What the parts of a run have in common, by what shows a difference.
SAME: dict[str, _Print] = {
    "questions (suite.sha256)": lambda manifest: manifest.get("suite", {}).get("sha256"),
    "weights (model.fingerprint)": lambda manifest: manifest.get("model", {}).get("fingerprint"),
    "chat template (model.template)": lambda manifest: manifest.get("model", {}).get("template"),
    "files of a method (methods.inputs)": lambda manifest: {
        name: [print_ or path for path, print_ in (each.get("inputs") or {}).items()]
        for name, each in manifest.get("methods", {}).items()
    },
    "dtype": lambda manifest: manifest.get("model", {}).get("dtype"),
    "kind of device": lambda manifest: str(manifest.get("model", {}).get("device")).partition(":")[0],
    "engine": lambda manifest: manifest.get("engine"),
    "version of specbench": lambda manifest: manifest.get("specbench"),
}


@dataclass(frozen=True, slots=True)
class Shard:
    """One part of a run. number: among the shards of the merge. part: ``k/n``."""

    number: int
    directory: Path
    manifest: dict[str, Any]
    part: str

    @property
    def places(self) -> Sequence[int]:
        """Of its cases, in their order, among those of the whole."""
        if "part" in self.manifest:
            return list(self.manifest["part"]["places"])
        first, step = part_numbers(self.part)  # of an older version
        return range(first - 1, first - 1 + step * self.manifest["suite"]["cases"], step)


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Where a block belongs, and where it is: shard, offset and size in bytes.

    rows: the methods that its part had by then; those come first that had the fewest.
    """

    count: int
    round: int
    place: int
    shard: int
    offset: int
    size: int
    rows: frozenset[str] = field(compare=False)


def merge(
    directories: Sequence[Path], out: Path, any_versions: bool = False, own: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Merge parts into a run at ``out``; returns its manifest.

    any_versions: other versions of libraries are a warning, no error. own: entries of the manifest.
    Raises InputError naming the part that is not whole, is missing, or was made with something else than the first.
    """
    shards = [_open(number, Path(directory)) for number, directory in enumerate(directories)]
    if (out / RECORDS).exists():
        raise RunError(f"--out {out}: holds a run; expected a new directory")
    part = join_parts([shard.part for shard in shards])
    for shard in shards[1:]:
        _refuse_other(shards[0], shard, any_versions)
    blocks = sorted(block for shard in shards for block in _find_blocks(shard))
    for one, next_one in itertools.pairwise(blocks):
        if (one.round, one.place) == (next_one.round, next_one.place) and one.shard != next_one.shard:
            both = f"{shards[one.shard].directory} and {shards[next_one.shard].directory}"
            raise RunError(f"{both}: both hold case {one.place + 1} of the suite; expected each part once")
    out.mkdir(parents=True, exist_ok=True)
    grown = _join_growths(shards, blocks)
    manifest = _join_manifests(shards, part) | dict(own) | ({"grown": grown} if grown else {})
    with replacing(out / RECORDS) as file:
        for number, block in enumerate(blocks):
            _copy(shards[block.shard], block, number, file)
        write_atomically(out / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    return manifest


def _open(number: int, directory: Path) -> Shard:
    manifest = read_manifest(directory, FIX)
    settings = manifest.get("config", {}).get("suite", {})
    part = settings.get("part")
    if part is None:
        raise RunError(f"{directory}: is no part of a run; expected one that was made with suite.part=k/n")
    if "part" not in manifest and settings.get("order") == "shuffled":
        raise RunError(f"{directory}: a part in shuffled order, of a version that did not write where its cases belong")
    for name, method in manifest.get("methods", {}).items():
        if method.get("reset") in LASTING:
            raise RunError(
                f"{directory}: method.{name}.reset={method['reset']} learns across cases, and a part has not seen those"
                " of the others; expected the policy case or turn, or one run of all cases"
            )
    return Shard(number, directory, manifest, part)


def is_whole(directory: Path, config_hash: str) -> bool:
    """Whether a directory holds a whole part of the run of this configuration."""
    if not (directory / MANIFEST).exists():
        return False
    try:
        shard = _open(0, directory)
        return shard.manifest.get("part", {}).get("config_hash") == config_hash and bool(list(_find_blocks(shard)))
    except InputError:  # which its worker meets too, and says
        return False


def _refuse_other(first: Shard, other: Shard, any_versions: bool) -> None:
    """Raise RunError where two parts are not of one run."""
    prints = dict(SAME)
    if not any_versions:
        prints["version of a library"] = lambda manifest: manifest.get("versions")
    differences = [
        (what, *find_difference(read(first.manifest), read(other.manifest), "")) for what, read in prints.items()
    ]
    differences.append(("configuration", *find_difference(_settings(first), _settings(other))))
    for what, key, one, two in differences:
        if one != two:
            named = f" ({key.strip('.')})" if key.strip(".") else ""
            raise RunError(
                f"{other.directory}: another {what}{named}: {two!r}, in {first.directory} it is {one!r}; expected parts"
                f" of one run{', or --any-versions' if 'library' in what else ''}"
            )


def _settings(shard: Shard) -> Any:
    """Those that decide records, without the part; what lies at a path is named by its print, if it has one."""
    kept = decisive(shard.manifest.get("config", {}))
    whole = kept | {"suite": {key: value for key, value in kept["suite"].items() if key != "part"}}
    model, suite = (shard.manifest.get(key, {}) for key in ("model", "suite"))
    prints = {model.get("path"): model.get("fingerprint"), suite.get("origin"): suite.get("sha256")}
    for method in shard.manifest.get("methods", {}).values():
        prints |= method.get("inputs") or {}
    return _with_prints(whole, prints)


def _with_prints(node: Any, prints: Mapping[str, str | None]) -> Any:
    """Settings, with the print in place of each path that has one."""
    if isinstance(node, Mapping):
        return {key: _with_prints(value, prints) for key, value in node.items()}
    return prints.get(node) or node if isinstance(node, str) else node


def _find_blocks(shard: Shard) -> Iterator[_Place]:
    """The blocks of a part, all of them. Raises RunError where one is missing."""
    manifest, places = shard.manifest, shard.places
    methods, since = rows_of(manifest)
    named = dict(zip(manifest.get("part", {}).get("cases", []), places, strict=False))
    held: dict[tuple[int, int], frozenset[str]] = {}
    count = start = 0
    seen = set[str]()
    for record, end in parse_lines(shard.directory / RECORDS):
        turn = record.round if named else count // len(places)
        at = (turn, named.get(record.case, places[count % len(places)]))
        wanted = due(methods, since, count, held.get(at, frozenset()))
        if record.method in seen or record.method not in wanted or (record.block, record.round) != (count, turn):
            raise RunError(f"{shard.directory / RECORDS}: block {count} is not in its place; {FIX}")
        seen.add(record.method)
        if seen == wanted:
            rows = frozenset(name for name in methods if since.get(name, 0) <= count)
            yield _Place(len(rows), *at, shard.number, start, end - start, rows)
            held[at] = held.get(at, frozenset()) | seen
            count, start, seen = count + 1, end, set()
    done, cases = sum(each == methods for each in held.values()), len(places) * (manifest.get("rounds") or 1)
    if done != cases:
        raise RunError(
            f"{shard.directory}: {done} of {cases} blocks are done; the command that began it goes on from there"
        )


def _join_growths(shards: Sequence[Shard], blocks: Sequence[_Place]) -> list[dict[str, Any]]:
    """The manifest's ``grown`` of the whole. Raises RunError for parts that have grown by other methods first."""
    found: list[dict[str, Any]] = []
    for before, block in itertools.pairwise(blocks):
        if not before.rows <= block.rows or (len(before.rows) == len(block.rows) and before.rows != block.rows):
            one, two = (shards[each.shard].directory for each in (before, block))
            raise RunError(f"{one} and {two}: have grown by other methods first; expected the same order in all parts")
    for number, (before, block) in enumerate(itertools.pairwise(blocks), start=1):
        if before.rows != block.rows:
            found.append({"block": number, "methods": sorted(block.rows - before.rows), "cases": 0, "rounds": 0})
    own = [each for shard in shards for each in shard.manifest.get("grown", [])]
    for entry in found:
        same = [each for each in own if set(each["methods"]) & set(entry["methods"])]
        entry |= {key: sum(each[key] for each in same) for key in ("cases", "again")}
    return found


def _copy(shard: Shard, block: _Place, number: int, into: BinaryIO) -> None:
    with (shard.directory / RECORDS).open("rb") as file:
        file.seek(block.offset)
        lines = file.read(block.size)
    named = b'"block":%d,"shard":%d' % (number, shard.number)
    into.writelines(_BLOCK.sub(named, line, count=1) for line in lines.splitlines(keepends=True))


def _join_manifests(shards: Sequence[Shard], part: str | None) -> dict[str, Any]:
    """The first part's manifest, with what belongs to all of them; each process names its shard."""
    first = shards[0].manifest
    suite, of = dict(first["suite"]), first.get("part", {})
    for key in ("cases", "turns"):
        suite[key] = sum(int(shard.manifest["suite"].get(key) or 0) for shard in shards)
    joined = {key: value for key, value in first.items() if key not in ("part", "config_hash", "grown", "blocks")}
    joined["config"] = first["config"] | {"suite": first["config"]["suite"] | {"part": part}}
    if of and part is None:
        joined["config_hash"] = of["config_hash"]
    elif of:
        joined["part"] = (
            of
            | {"of": part}
            | join_places([(shard.places, shard.manifest["part"].get("cases", [])) for shard in shards])
        )
    return joined | {
        "suite": suite,
        "created": min(str(shard.manifest.get("created")) for shard in shards),
        "shards": [{"part": shard.part, "cases": shard.manifest["suite"]["cases"]} for shard in shards],
        "processes": [
            process | {"shard": shard.number} for shard in shards for process in shard.manifest.get("processes", [])
        ],
        "warnings": list(_join_warnings(shards)),
    }


def _join_warnings(shards: Sequence[Shard]) -> Iterator[str]:
    """Each once, with the parts that it is about."""
    about: dict[str, list[str]] = {}
    for shard in shards:
        for text in shard.manifest.get("warnings", []):
            about.setdefault(text, []).append(shard.part)
    for text, parts in about.items():
        yield text if len(parts) == len(shards) else f"part {', '.join(parts)}: {text}"
    for what, read in (
        ("commits", lambda manifest: manifest.get("git", {}).get("commit")),
        ("versions", lambda manifest: json.dumps(manifest.get("versions"))),
    ):
        seen = {str(read(shard.manifest)) for shard in shards}
        if len(seen) > 1:
            yield f"the parts were made by several {what}: {', '.join(sorted(seen))}"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 merged, 1 the disk is full, 2 the parts do not allow it."""
    parser = argparse.ArgumentParser(prog="specbench merge", description="Merge the parts of a run into the run.")
    parser.add_argument("shards", nargs="+", type=Path, metavar="SHARD", help="directory of a part (suite.part=k/n)")
    parser.add_argument("--out", required=True, type=Path, metavar="RUN", help="directory of the run")
    parser.add_argument("--any-versions", action="store_true", help="other library versions are a warning, no error")
    options = parser.parse_args(argv)
    try:
        manifest = merge(options.shards, options.out, options.any_versions)
    except InputError as error:
        return fail(str(error), "specbench merge")
    except OSError as error:
        print(printable(f"specbench merge: {error.filename}: {error.strerror}"), file=sys.stderr)
        return FAILED
    point_latest(options.out)
    print(printable(f"{manifest['suite']['cases']} cases of {len(manifest['shards'])} parts are in {options.out}"))
    print(printable(f"its page: specbench report {options.out}"))
    return 0
