"""Run directories that a user, or another program, can get wrong: records and manifests, reported or resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_input.case import DEEP, Bad, bad, bad_report
from report.conftest import manifest_of

from builders.records import record, turn


def report(
    name: str, change: Callable[[dict[str, Any], list[dict[str, Any]]], object], *words: str, code: int = 2
) -> Bad:
    """Of a run of two cases under vanilla and pld, whose manifest and records are changed."""
    records = [
        record(method, case, [turn([1, 1])], block=block, position=position)
        for block, case in enumerate("ab")
        for position, method in enumerate(("vanilla", "pld"))
    ]
    manifest, lines = manifest_of({"pld": {}}, control=False), [json.loads(entry.to_json()) for entry in records]
    change(manifest, lines)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    files = {"run/manifest.json": json.dumps(manifest), "run/records.jsonl": text}
    return bad_report("run --no-plots", *words, name=f"report: {name}", files=files, code=code)


def records(name: str, content: Callable[[str], str | bytes], *words: str) -> Bad:
    """As ``report``, the file of records changed as a text."""
    whole = report(name, lambda *_: None, *words)
    assert isinstance(whole.files, dict)
    files = whole.files | {"run/records.jsonl": content(str(whole.files["run/records.jsonl"]))}
    return bad_report("run --no-plots", *words, name=f"report: {name}", files=files)


def entry(**entries: object) -> Callable[..., None]:
    """Of the second record."""
    return lambda _, lines: lines[1].update(entries)


def step(**entries: object) -> Callable[..., None]:
    """Of its turn."""
    return lambda _, lines: lines[1]["turns"][0].update(entries)


def both(**entries: object) -> Callable[..., None]:
    """Of its turn, and of vanilla's."""
    return lambda _, lines: [line["turns"][0].update(entries) for line in lines[:2]]


def blocks(change: Callable[[dict[str, Any]], object]) -> Callable[..., None]:
    """Of the records of the second block."""
    return lambda _, lines: [change(line) for line in lines[2:]]


def verdict(**entries: object) -> Callable[..., None]:
    """Of its verdict."""
    return lambda _, lines: lines[1]["lossless"].update(entries)


def longer(_: object, lines: list[dict[str, Any]]) -> None:
    """It has a turn that vanilla has not."""
    lines[1]["turns"] *= 2


def link(target: str) -> Callable[[Path], None]:
    """The file of records is a link."""

    def write(folder: Path) -> None:
        whole = report("", lambda *_: None)
        assert isinstance(whole.files, dict)
        whole.write(folder)
        (folder / "run/records.jsonl").unlink()
        (folder / "run/records.jsonl").symlink_to(target)

    return write


def about(**entries: object) -> Callable[..., None]:
    """Of the manifest."""
    return lambda manifest, _: manifest.update(entries)


def load(**entries: object) -> Callable[..., None]:
    """Of the manifest's settings of the load."""
    return about(config={"load": entries})


LINE = "records.jsonl, line 2: "
DRAFT = {"accept": [2], "proposed": [1], "depth": [1], "fed": [2]}
STRETCH = {"seconds": 1.0, "tokens": 3, "forwards": 2, "requests": 2, "rows": 2}
REPORTED = (
    records("record not UTF-8", lambda text: text.encode().replace(b'"length"', b'"\xff"', 1), "line 1: not UTF-8"),
    records("record deeply nested", lambda text: f"{DEEP}\n{text}", "line 1: not JSON", "recursion"),
    records("record no object", lambda text: f"3\n{text}", "line 1: it is 3"),
    records(
        "record twice", lambda text: text + text.splitlines()[1] + "\n", "line 5: case a, pld, round 0 is on line 2"
    ),
    records("record that is garbage at the end", lambda text: f"{text}garbage\n", "line 5: not JSON"),
    report("method empty", entry(method=""), f"{LINE}method is ''"),
    report("category of all", entry(category="overall"), f"{LINE}category 'overall'"),
    report("status unknown", entry(status="fine"), f"{LINE}status is 'fine'"),
    report("no turns", entry(turns=[]), f"{LINE}turns is empty though its status is ok"),
    report("error without its reason", entry(status="error", turns=[]), f"{LINE}an error goes with status error"),
    report("an entry too many", entry(more=1), f"{LINE}more is 1"),
    report("an entry too few", lambda _, lines: lines[1].pop("block"), f"{LINE}block is missing"),
    report("verdict of more ties", verdict(ties=9, violations=2), f"{LINE}lossless.ties 9 and violations 2"),
    report("verdict of more steps", verdict(close_steps=3), f"{LINE}lossless.close_steps is 3 of 2 steps"),
    report("verdict equal that diverges", verdict(divergence=[0, 1]), f"{LINE}lossless.divergence is [0, 1]"),
    report("verdict of three places", verdict(equal=False, divergence=[0, 1, 2]), f"{LINE}lossless.divergence is"),
    report("verdict of one place", verdict(equal=False, divergence=[0]), f"{LINE}lossless.divergence is [0]"),
    report("verdict of a far place", verdict(equal=False, divergence=[1, 0]), f"{LINE}lossless.divergence is [1, 0]"),
    report(
        "verdict without a place", verdict(equal=False), f"{LINE}lossless.equal is false", "the answer is vanilla's"
    ),
    report("verdict of other ids", step(ids=[1, 2, 9]), f"{LINE}lossless.equal is true", "not vanilla's"),
    report("turns of another number", longer, f"{LINE}number of turns of case a is 2, on line 1 it is 1"),
    report("category of another", entry(category="rag"), f"{LINE}category of case a is 'rag', on line 1 it is 'qa'"),
    report("block of another", entry(block=7), f"{LINE}block of case a is 7, on line 1 it is 0"),
    report("round beyond the manifest's", entry(round=1), f"{LINE}round is 1, counted from 0", "rounds are 1"),
    report("ids empty", step(ids=[], accept=[], proposed=[], depth=[], fed=[]), f"{LINE}turns.0: ids is empty"),
    report("accept empty", step(accept=[]), f"{LINE}turns.0: accept, proposed", "[0, 2, 2, 2]"),
    report("accept zero", step(accept=[0, 2]), f"{LINE}turns.0.accept.0 is 0"),
    report(
        "accept of no draft",
        step(accept=[2], proposed=[0], depth=[0], fed=[1]),
        f"{LINE}turns.0: accept.0 is 2",
        "depth 0",
    ),
    report(
        "vanilla of several tokens a step",
        both(accept=[2], proposed=[1], depth=[1], fed=[2]),
        "line 1: accept has a step of several tokens, vanilla",
    ),
    report("accept more than ids", step(accept=[2, 2]), f"{LINE}turns.0: accept adds up to 4"),
    report(
        "phases beyond the turn",
        step(phases_s={"draft": 9.0}),
        f"{LINE}turns.0: phases_s adds up to 9 s",
        "decoding took 1 s",
    ),
    report(
        "steps beyond the turn", step(step_s=[1.0, 9.0]), f"{LINE}turns.0: step_s adds up to 10 s", "decoding took 1 s"
    ),
    report("step times of another length", step(step_s=[0.1]), f"{LINE}turns.0: accept, proposed"),
    report("sources of more", step(sources={"a": [1, 2]}), f"{LINE}turns.0: sources.a has 2 accepted nodes of 1"),
    report("sources of three", step(sources={"a": [1, 2, 3]}), f"{LINE}turns.0.sources.a is [1, 2, 3]"),
    report("trees too few", step(trees=[{"tokens": [], "parents": [], "path": []}]), f"{LINE}turns.0: accept"),
    report("tree without tokens", step(trees=[{}, {}]), f"{LINE}turns.0.trees.0.tokens is missing"),
    report("tree of a later parent", step(trees=[{"tokens": [1], "parents": [0], "path": []}] * 2), "trees.0.parents"),
    report(
        "tree with a path out of it", step(trees=[{"tokens": [1], "parents": [-1], "path": [5]}] * 2), "beyond its 1"
    ),
    report("prefill of a lifetime", step(prefill_s=1e9), f"{LINE}turns.0.prefill_s is 1000000000.0", "31622400"),
    report("steps shorter than the turn", step(step_s=[0.1, 0.1]), f"{LINE}turns.0: decode_s is 1 s, step_s adds up"),
    report("turn longer than its phases", step(decode_s=50.0), f"{LINE}turns.0: decode_s is 50 s, phases_s adds up"),
    report("turn shorter than its phases", step(decode_s=0.1), f"{LINE}turns.0: phases_s adds up to 1 s"),
    report("fed none", step(proposed=[2, 0], depth=[2, 0], fed=[0, 1]), f"{LINE}turns.0: fed.0 is 0", "2 proposed"),
    report("fed without its root", step(proposed=[2, 0], depth=[2, 0], fed=[2, 1]), f"{LINE}turns.0: fed.0 is 2"),
    report("depth of no node", step(depth=[2, 0]), f"{LINE}turns.0: depth.0 is 2, a draft of 0 nodes"),
    report("nodes of no depth", step(proposed=[2, 0], fed=[3, 1]), f"{LINE}turns.0: depth.0 is 0, a draft of 2"),
    report("sources of more nodes", step(sources={"a": [3, 0]}), f"{LINE}turns.0: sources have 3 nodes"),
    report("share above 1", step(stats={"overlap": 1.5}), f"{LINE}turns.0: stats.overlap is 1.5"),
    report("prompt ids of another length", step(prompt_ids=[1, 2]), f"{LINE}turns.0: prompt_ids are 2"),
    report("prompt of another length", step(prompt_tokens=9), f"{LINE}turns.0.prompt_tokens of case a is 9, on line 1"),
    report("tree of more nodes", step(trees=[{"tokens": [1], "parents": [-1], "path": []}] * 2), "proposed is 0"),
    report(
        "tree of a shorter path", step(trees=[{"tokens": [1], "parents": [-1], "path": []}], **DRAFT), "accept is 2"
    ),
    report("position twice", entry(position=0), f"{LINE}position is 0, pld is method 1 of its block"),
    report("position beyond the methods", entry(position=7), f"{LINE}position is 7"),
    report("case of another in a block", entry(case="c"), f"{LINE}case of block 0 is c, on line 1 it is a"),
    report("block left out", blocks(lambda line: line.update(block=2)), "line 3: block is 2, after block 0"),
    report("block of no plan", about(blocks=1), "line 3: block is 1, counted from 0, and the manifest's blocks are 1"),
    report("shard of no run", entry(shard=0), f"{LINE}shard is 0, counted from 0, and the manifest's shards are 0"),
    report("method of no manifest", entry(method="sam"), f"{LINE}method sam is not in the manifest"),
    report("method missing", lambda _, lines: lines.pop(1), "line 2: block 0, from line 1, lacks a record of pld"),
    report("case of no suite", about(suite={"name": "s", "cases": 1}), "line 3: case b is one too many"),
    report("ids beyond the limit", about(config={"decode": {"max_new_tokens": 2}}), "line 1: turns.0 has 3 ids"),
    report("ids beyond the context", about(model={"name": "m", "context": 7}), "line 1: turns.0 has a prompt of 5"),
    report("stretch without a load", entry(stretch=STRETCH), f"{LINE}the record has a stretch, and load.kind is one"),
    report("load without a stretch", load(kind="closed", requests=2), "line 1: the record lacks its stretch"),
    report(
        "replay of other ids",
        lambda manifest, lines: (
            manifest["config"].update(engine={"kind": "replay"}),
            lines[1].update(lossless=None),
            lines[1]["turns"][0].update(ids=[1, 2, 9]),
        ),
        f"{LINE}the ids at [0, 0] are not vanilla's",
    ),
    records(
        "key twice",
        lambda text: text.replace('"round": 0', '"round": 0, "round": 0', 1),
        "line 1: has 'round' twice in one",
    ),
    records(
        "key twice in a later line",
        lambda text: "".join(
            line.replace('"fed":', '"fed":[9],"fed":') if '"b"' in line else line for line in text.splitlines(True)
        ),
        "line 3: has 'fed' twice in one object",
    ),
    records(
        "key twice, once escaped",
        lambda text: text.replace('"round": 0', '"round": 0, "roun\\u0064": 0', 1),
        "line 1: has 'round' twice in one",
    ),
    bad_report(
        "run --no-plots",
        "run/manifest.json: has 'rounds' twice in one object",
        name="report: manifest with a key twice",
        files={"run/manifest.json": '{"rounds": 1, "rounds": 2}'},
    ),
    report("load of another kind", load(kind="x"), "manifest.json: config.load.kind is 'x'"),
    report("load without requests", load(kind="closed"), "manifest.json: config.load is", "should have requests"),
    report("engine unknown", about(config={"engine": {"kind": "x"}}), "manifest.json: config.engine.kind is 'x'"),
    report("first draft unknown", about(config={"decode": {"first_draft": "x"}}), "config.decode.first_draft is 'x'"),
    report("reset unknown", about(methods={"pld": {"reset": "x"}}), "manifest.json: methods.pld.reset is 'x'"),
    report("created no date", about(created="yesterday"), "manifest.json: created is 'yesterday'"),
    report("manifest a list", lambda manifest, _: manifest.clear(), "`model.name` is missing"),
    report("manifest of a later schema", about(schema=2), "manifest.json: schema is 2"),
    report("model without a name", about(model={}), "`model.name` is missing"),
    report("device odd", about(model={"name": "m", "device": "cuda:x"}), "model.device is 'cuda:x'"),
    report("rounds zero", about(rounds=0), "rounds is 0"),
    bad_report(
        "run", "run/manifest.json: not JSON", name="report: manifest cut", files={"run/manifest.json": '{"model": '}
    ),
    bad_report("run", "manifest.json: it is []", name="report: manifest no object", files={"run/manifest.json": "[]"}),
    bad_report("run", "not JSON", "recursion", name="report: manifest nested", files={"run/manifest.json": DEEP}),
    bad_report("run", "not UTF-8", name="report: manifest not UTF-8", files={"run/manifest.json": b'{"a": "\xff"}'}),
    bad_report(
        "run", "manifest.json: is a directory", name="report: manifest a folder", files={"run/manifest.json/a": ""}
    ),
    bad_report(
        "run --no-plots",
        "run/records.jsonl: cannot be read",
        name="report: records a loop",
        files=link("records.jsonl"),
    ),
    bad_report("run --no-plots", "run/records.jsonl: no such file", name="report: records nowhere", files=link("gone")),
    bad_report("nowhere", "no such directory"),
    bad_report("run", "contains no manifest.json", name="report: no manifest", files={"run/a": ""}),
)

RESUMED = (
    bad("", "manifest.json", name="records without their manifest", files={"run/records.jsonl": ""}),
    bad("", "another configuration", name="another run", files={"run/manifest.json": '{"config_hash": "other"}'}),
    bad("", "run/manifest.json: not JSON", "measure.fresh=true", name="resume: cut", files={"run/manifest.json": "{"}),
    bad("", "suite is 3", name="resume: manifest of another kind", files={"run/manifest.json": '{"suite": 3}'}),
)

RUNS = (*REPORTED, *RESUMED)
