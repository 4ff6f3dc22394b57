"""Parts of a run, ``k/n``: every n-th case from the k-th on. Parts that were made anywhere merge
into the run.

A block is copied unchanged, except for its number and the part that measured it. Pairing stays
inside the block, so every ratio is the one that was measured. Records are read one at a time, and
written in plan order.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from specbench.input import InputError
from specbench.measure.plan import LASTING
from specbench.records.manifest import Growth, Manifest, Part
from specbench.records.record import REFERENCES
from specbench.records.store import (
    MANIFEST,
    RECORDS,
    RunError,
    read_blocks,
    read_manifest,
    remove_partials,
    replacing,
    write_manifest,
)
from specbench.runs.digest import decisive, find_difference

FIX = "restore it, or make the part again"
_PART = re.compile(r"([1-9]\d*)/([1-9]\d*)")
# in a text of a record a quotation mark has a backslash in front
_BLOCK = re.compile(rb'"block":\s*\d+')

# What the parts of a run have in common, by what shows a difference.
SAME: dict[str, Callable[[Manifest], Any]] = {
    "questions (suite.sha256)": lambda manifest: manifest.suite.sha256,
    "weights (model.fingerprint)": lambda manifest: manifest.model.fingerprint,
    "chat template (model.template)": lambda manifest: manifest.model.template,
    "set of methods": lambda manifest: sorted(manifest.methods),
    "files of a method (methods.inputs)": lambda manifest: {
        name: [fingerprint or path for path, fingerprint in method.inputs.items()]
        for name, method in manifest.methods.items()
    },
    "dtype": lambda manifest: manifest.model.dtype,
    "kind of device": lambda manifest: str(manifest.model.device).partition(":")[0],
    "engine": lambda manifest: manifest.engine,
    "forward": lambda manifest: manifest.forward,
    "version of specbench": lambda manifest: manifest.specbench,
}


def part_numbers(part: str) -> tuple[int, int]:
    """'2/3' -> (2, 3). Raises RunError."""
    found = _PART.fullmatch(part)
    if not found:
        raise RunError(f"part {part}: expected k/n")
    return int(found[1]), int(found[2])


def require_parts(parts: Sequence[str], whole: str | None) -> None:
    """Raise RunError if parts do not make a part, or the complete run (None), together."""
    first, step = part_numbers(whole) if whole else (1, 1)
    numbers = [part_numbers(part) for part in parts]
    steps = math.lcm(step, *(each for _, each in numbers))
    taken = {place for own, each in numbers for place in range(own - 1, steps, each)}
    missing = [
        f"{place + 1}/{steps}" for place in range(first - 1, steps, step) if place not in taken
    ]
    if missing:
        raise RunError(
            f"parts {', '.join(parts)}: {', '.join(missing)} missing; expected all parts of a run"
        )


def split_part(part: str | None, count: int) -> list[str]:
    """``count`` parts that make a part, or the complete run, together: as ``require_parts``
    requires.
    """
    first, step = part_numbers(part) if part else (1, 1)
    return [f"{first + number * step}/{step * count}" for number in range(count)]


def part_name(part: str) -> str:
    """``k/n`` as the name of a directory."""
    return part.replace("/", "-of-")


@dataclass(frozen=True, slots=True)
class Shard:
    """One part that is merged. number: its place among them."""

    number: int
    directory: Path
    manifest: Manifest
    part: Part


@dataclass(frozen=True, slots=True, order=True)
class _StoredBlock:
    """The place of a block in the run and in the files: shard, offset and size in bytes.

    methods: the rows that its part had when the block was written; blocks of fewer rows come first
    in the merged run.
    """

    count: int
    round: int
    place: int
    shard: int
    offset: int
    size: int
    methods: frozenset[str] = field(compare=False)


def merge(
    directories: Sequence[Path],
    out: Path,
    any_versions: bool = False,
    own: Mapping[str, Any] = MappingProxyType({}),
    part: str | None = None,
) -> Manifest:
    """Merge the parts in ``directories`` into a run in ``out``; returns the manifest of the run.

    any_versions: other versions of libraries are a warning instead of an error. own: entries that
    the manifest gets. part: what the parts make together, None for the complete run. Nothing is
    written if ``out`` is this run already. Raises RunError if a part is incomplete, is missing, or
    was made with something else than the first.
    """
    shards = [_open(number, Path(directory)) for number, directory in enumerate(directories)]
    require_parts([shard.part.of for shard in shards], part)
    for shard in shards[1:]:
        _refuse_other(shards[0], shard, any_versions)
    blocks = sorted(block for shard in shards for block in _find_blocks(shard))
    for one, two in itertools.pairwise(blocks):
        if (one.round, one.place) == (two.round, two.place) and one.shard != two.shard:
            both = f"{shards[one.shard].directory} and {shards[two.shard].directory}"
            raise RunError(
                f"{both}: both contain case {one.place + 1} of the suite; expected each part once"
            )
    grown = _join_growths(shards, blocks)
    values = _join_manifests(shards, part) | dict(own)
    values |= {"grown": [growth.model_dump() for growth in grown]} if grown else {}
    remove_partials(out)
    if (out / RECORDS).exists():
        if not _is_merged(out, shards, blocks, values):
            raise RunError(f"--out {out}: contains a run; expected a new directory")
        return Manifest.model_validate(values)
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / RECORDS, sync=True) as file:
        file.writelines(_merged_lines(shards, blocks))
        write_manifest(out, values)
    return Manifest.model_validate(values)


def _merged_lines(shards: Sequence[Shard], blocks: Sequence[_StoredBlock]) -> Iterator[bytes]:
    """The lines of blocks, in which each names its new number and its shard."""
    for number, block in enumerate(blocks):
        with (shards[block.shard].directory / RECORDS).open("rb") as stored:
            stored.seek(block.offset)
            lines = stored.read(block.size).splitlines(keepends=True)
        named = b'"block":%d,"shard":%d' % (number, block.shard)
        yield from (_BLOCK.sub(named, line, count=1) for line in lines)


def _is_merged(
    out: Path, shards: Sequence[Shard], blocks: Sequence[_StoredBlock], values: Mapping[str, Any]
) -> bool:
    """Returns whether a run is the one that these parts make: a merge was killed after it, or is
    repeated.
    """
    if (
        not (out / MANIFEST).exists()
        or read_manifest(out).as_dict() != Manifest.model_validate(values).as_dict()
    ):
        return False
    with (out / RECORDS).open("rb") as stored:
        return all(
            line == found
            for line, found in itertools.zip_longest(_merged_lines(shards, blocks), stored)
        )


def is_whole(directory: Path, config_hash: str) -> bool:
    """Returns whether a directory contains a complete part of the run with this configuration."""
    if not (directory / MANIFEST).exists():
        return False
    try:
        shard = _open(0, directory)
        return shard.part.config_hash == config_hash and bool(_find_blocks(shard))
    except InputError:  # the part's worker meets it too, and reports it
        return False


def _open(number: int, directory: Path) -> Shard:
    manifest = read_manifest(directory, FIX)
    if manifest.part is None:
        raise RunError(
            f"{directory}: is not a part of a run (suite.part); expected one that was made with"
            " suite.part=k/n"
        )
    for name, method in manifest.methods.items():
        if method.reset in LASTING:
            raise RunError(
                f"{directory}: method.{name}.reset={method.reset} learns across cases, and a part"
                " has not seen those of the others; expected the policy case or turn, or one run"
                " of all cases"
            )
    return Shard(number, directory, manifest, manifest.part)


def _refuse_other(first: Shard, other: Shard, any_versions: bool) -> None:
    """Raise RunError if two parts are not of one run."""
    compared = dict(SAME)
    if not any_versions:
        compared["version of a library"] = lambda manifest: manifest.versions
    differences = [
        (what, *find_difference(read(first.manifest), read(other.manifest), ""))
        for what, read in compared.items()
    ]
    differences.append(
        ("configuration", *find_difference(_settings(first.manifest), _settings(other.manifest)))
    )
    for what, key, one, two in differences:
        if one != two:
            named = f" ({key.strip('.')})" if key.strip(".") else ""
            raise RunError(
                f"{other.directory}: another {what}{named}: {two!r}, in {first.directory} it is"
                f" {one!r}; expected parts of one"
                f" run{', or --any-versions' if 'library' in what else ''}"
            )


def _settings(manifest: Manifest) -> Any:
    """The settings that decide records, without the part; a path is replaced by its content's
    fingerprint, if known.
    """
    kept = decisive(manifest.config.written)
    whole = kept | {"suite": {key: value for key, value in kept["suite"].items() if key != "part"}}
    model, suite = manifest.model, manifest.suite
    fingerprints: dict[str | None, str | None] = {
        model.path: model.fingerprint,
        suite.origin: suite.sha256,
    }
    for method in manifest.methods.values():
        fingerprints.update(method.inputs.items())

    def replaced(node: Any) -> Any:
        if isinstance(node, Mapping):
            return {key: replaced(value) for key, value in node.items()}
        return fingerprints.get(node) or node if isinstance(node, str) else node

    return replaced(whole)


def _find_blocks(shard: Shard) -> list[_StoredBlock]:
    """The blocks of a part. Raises RunError if one is missing."""
    manifest, path = shard.manifest, shard.directory / RECORDS
    methods, first_blocks, rounds = manifest.rows, manifest.first_blocks, manifest.rounds or 1
    places = list(zip(shard.part.cases, shard.part.places, strict=True))
    where = {(name, turn): place for turn in range(rounds) for name, place in places}
    found, start = list[_StoredBlock](), 0
    have: dict[tuple[str, int], frozenset[str]] = {}
    for number, (records, end) in enumerate(read_blocks(path, methods, first_blocks, fix=FIX)):
        at = records[0].case, records[0].round
        if at not in where:
            raise RunError(
                f"{path}: block {number} has case {at[0]} in round {at[1]}, which is not in the"
                f" part; {FIX}"
            )
        present, before = frozenset(record.method for record in records), have.get(at, frozenset())
        if before.issuperset(methods) or (present & before).difference(REFERENCES):
            raise RunError(
                f"{path}: block {number} has case {at[0]} in round {at[1]} a second time; {FIX}"
            )
        have[at] = before | present
        by_then = frozenset(name for name in methods if first_blocks.get(name, 0) <= number)
        found.append(
            _StoredBlock(len(by_then), at[1], where[at], shard.number, start, end - start, by_then)
        )
        start = end
    total, done = (
        len(places) * rounds,
        sum(present.issuperset(methods) for present in have.values()),
    )
    if done != total:
        raise RunError(
            f"{shard.directory}: {done} of {total} blocks are done; the command that began it"
            " continues from there"
        )
    return found


def _join_growths(shards: Sequence[Shard], blocks: Sequence[_StoredBlock]) -> list[Growth]:
    """The manifest's ``grown`` of the complete run. Raises RunError for parts that were given other
    methods first.
    """
    found: list[Growth] = []
    own = [growth for shard in shards for growth in shard.manifest.grown]
    for number, (before, block) in enumerate(itertools.pairwise(blocks), start=1):
        one, two = before.methods, block.methods
        if not one <= two or (len(one) == len(two) and one != two):
            both = (shards[each.shard].directory for each in (before, block))
            raise RunError(
                f"{' and '.join(map(str, both))}: have grown by other methods first; expected the"
                " same order in all parts"
            )
        if one != two:
            same = [growth for growth in own if set(growth.methods) & (two - one)]
            cases, again = (
                sum(getattr(growth, key) for growth in same) for key in ("cases", "again")
            )
            found.append(
                Growth(block=number, methods=sorted(two - one), cases=cases, rounds=0, again=again)
            )
    return found


def _join_manifests(shards: Sequence[Shard], part: str | None) -> dict[str, Any]:
    """The plain values of the first part's manifest, with what belongs to all of them; a process
    names its shard.
    """
    manifests = [shard.manifest for shard in shards]
    first, of = manifests[0], shards[0].part
    joined = first.as_dict()
    for key in ("part", "config_hash", "grown", "blocks"):
        joined.pop(key, None)
    written = first.config.written
    joined["config"] = written | {"suite": written["suite"] | {"part": part}}
    if part is None:
        joined["config_hash"] = of.config_hash
    else:
        joined["part"] = of.model_dump(exclude_unset=True) | {"of": part} | _join_places(shards)
    counts = {
        key: sum(getattr(each.suite, key) or 0 for each in manifests) for key in ("cases", "turns")
    }
    return joined | {
        "suite": joined["suite"] | counts,
        "created": min((each.created for each in manifests if each.created), default=""),
        "shards": [
            {"part": shard.part.of, "cases": shard.manifest.suite.cases} for shard in shards
        ],
        "processes": [
            process.model_dump(exclude_unset=True) | {"shard": shard.number}
            for shard in shards
            for process in shard.manifest.processes
        ],
        "warnings": list(_join_warnings(shards)),
    }


def _join_places(shards: Sequence[Shard]) -> dict[str, Any]:
    """Places and cases of all parts, in order of the places."""
    own = [zip(shard.part.places, shard.part.cases, strict=True) for shard in shards]
    pairs = sorted(itertools.chain.from_iterable(own))
    return {"places": [place for place, _ in pairs], "cases": [name for _, name in pairs]}


def _join_warnings(shards: Sequence[Shard]) -> Iterator[str]:
    """Each warning once, with the parts that have it."""
    about: dict[str, list[str]] = {}
    for shard in shards:
        for text in shard.manifest.warnings:
            about.setdefault(text, []).append(shard.part.of)
    for text, parts in about.items():
        yield text if len(parts) == len(shards) else f"part {', '.join(parts)}: {text}"
    commits = {str(shard.manifest.git.commit) for shard in shards}
    versions = {json.dumps(shard.manifest.versions) for shard in shards}
    for what, seen in (("commits", commits), ("versions", versions)):
        if len(seen) > 1:
            yield f"the parts were made by several {what}: {', '.join(sorted(seen))}"
