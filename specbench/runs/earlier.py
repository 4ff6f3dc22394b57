"""Finds the earlier run that a job may continue or grow, and what earlier runs predict of a new
one.

A run in the job's own directory is continued if its settings, questions, weights and files are the
job's. A run with the same settings and fewer methods, cases or rounds may grow into the job's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from specbench.measure import environment
from specbench.measure.identity import hide_identity
from specbench.models.facade import ModelCard
from specbench.models.weights import empty_model
from specbench.names import printable
from specbench.records.consistency import Consistency
from specbench.records.manifest import Machine, Manifest
from specbench.records.record import CaseRecord
from specbench.records.store import LOCK, MANIFEST, RECORDS, parse_lines, read_manifest
from specbench.runs.digest import find_difference, fixed
from specbench.runs.job import Job
from specbench.runs.ledger import Ledger
from specbench.runs.sources import Stage
from specbench.serving.settings import find_last_arrival
from specbench.suite.prompt import TEMPLATES
from specbench.types import InputError

GB, MB, MINUTE = 1e9, 1e6, 60.0


def _refuse_settings(job: Job, earlier: Manifest, directory: Path) -> None:
    """Raise InputError if the earlier run has other settings than this job, or a method with
    others.
    """
    if earlier.config_hash == job.digest:
        return
    there, here = (hide_identity(config) for config in (earlier.config.written, job.resolved))
    one, two = there.get("method", {}), here["method"]
    kept, asked = ({name: each[name] for name in one if name in two} for each in (one, two))
    key, old, new = find_difference({"method": kept}, {"method": asked})
    if old == new:
        key, old, new = find_difference(fixed(there), fixed(here))
    if old != new or not there:
        what = f"{key}={old!r}, here {new!r}" if there else "its settings are not known"
        raise InputError(
            f"results directory {directory}: has a run of another configuration ({what}); choose"
            " another with hydra.run.dir=..., or keep it aside with measure.fresh=true"
        )


def check_same(job: Job, earlier: Manifest, directory: Path) -> None:
    """Raise InputError unless the earlier run has this job's configuration, questions, weights and
    files.
    """
    _refuse_settings(job, earlier, directory)
    compared: list[tuple[str, Any, Any]] = [
        ("suite file", earlier.suite.sha256, job.source.suite.sha256),
        (
            "weights",
            earlier.model.fingerprint,
            environment.weights_fingerprint(job.source.card.path),
        ),
    ]
    template = job.config.model.template or ""
    if template.endswith(TEMPLATES):
        own = environment.weights_fingerprint(template)
        compared.append(("chat template", earlier.model.template, own))
    for entry in job.entries:
        if entry.name in earlier.methods:
            inputs = {path: environment.weights_fingerprint(path) for path in entry.method.inputs}
            compared.append(
                (f"file behind {entry.name}", earlier.methods[entry.name].inputs, inputs)
            )
    for what, old, new in compared:
        if hide_identity(old) != hide_identity(new):
            raise InputError(
                f"results directory {directory}: has a run of another {what};"
                " choose another with hydra.run.dir=..., or keep it aside with measure.fresh=true"
            )


def check_forward(stage: Stage, earlier: Manifest, directory: Path) -> None:
    """Raise InputError if ``auto`` has chosen another engine, or another forward of it, than in the
    earlier run.
    """
    kinds, forwards = (
        (earlier.engine, stage.engine.kind),
        (earlier.forward, stage.engine.describe_forward()),
    )
    for what, (old, new) in (("engine", kinds), ("forward", forwards)):
        if old != new:
            why = f" ({stage.note})" if stage.note else ""
            raise InputError(
                f"results directory {directory}: has a run whose {what} is {old!r}, here it is"
                f" {new!r}{why}; expected the GPU and the packages of that run; or choose another"
                " directory with hydra.run.dir=..., or keep it aside with measure.fresh=true"
            )


def check_recorded(
    job: Job, earlier: Manifest, records: Sequence[CaseRecord], directory: Path
) -> None:
    """Raise InputError unless the records are of the run that the manifest describes, and of this
    job's questions.
    """
    consistency = Consistency(directory / RECORDS, earlier)
    for record in records:
        consistency.check(record)
    consistency.end()
    cases = {case.id: case for block in job.plan for case in block.cases}
    for record in records:
        case = cases.get(record.case)
        if case is None and earlier.config_hash == job.digest:
            what = f"has case {record.case}, and the suite has not"
        elif case and (record.category, record.subcategory) != (case.category, case.subcategory):
            what = (
                f"has case {record.case} in category {record.category}, in the suite it is in"
                f" {case.category}"
            )
        elif case and record.status == "ok" and len(record.turns) != len(case.turns):
            what = (
                f"has {len(record.turns)} turns of case {record.case}, in the suite it has"
                f" {len(case.turns)}"
            )
        else:
            continue
        raise InputError(
            f"{directory / RECORDS}: {what}; expected the records of this run: restore the file, or"
            " begin anew with measure.fresh=true"
        )


def check_growth(job: Job, earlier: Manifest, ledger: Ledger, directory: Path) -> None:
    """Raise InputError unless this job has everything that the run has, and more. earlier: the
    manifest of the run.
    """
    if earlier.config_hash == job.digest:
        return
    absent = [name for name in earlier.methods if name not in {entry.name for entry in job.entries}]
    fault = ""
    if absent:
        fault = (
            f"it has method {absent[0]}, and this command has not; expected method=[...] with all"
            " of its methods"
        )
    elif ledger.unplanned:
        cases, turn = ledger.unplanned[0]
        fault = (
            f"it has case {min(cases)} in round {turn}, and this command has not; expected all of"
            " its cases and rounds"
        )
    elif ledger.kept < len(ledger.recorded):
        fault = (
            "a method of it learns across cases (reset), so that more cases make other figures;"
            " expected a new run"
        )
    if fault:
        raise InputError(
            f"results directory {directory}: has a run of another configuration, which cannot grow"
            f" into this one: {fault}, hydra.run.dir=..., or measure.fresh=true"
        )


def find_grown(job: Job, directory: Path, dry: bool) -> Path:
    """The run next to ``directory`` that lacks the fewest blocks of this job; ``directory`` if no
    run may grow into it.

    dry: no run is locked, also not while its records are read.

    Raises:
        InputError: several workers are to add to the run.
    """
    if job.config.measure.fresh or (directory / MANIFEST).exists():
        return directory
    _, found = min(_smaller_runs(job, directory, dry), default=(0, directory))
    if found != directory and job.config.run.shards != 1:
        raise InputError(
            f"run.shards={job.config.run.shards}: {found} has a part of this run, and a run grows"
            " in one process; expected run.shards=1, which runs what is missing, or"
            " measure.fresh=true, which runs all of it"
        )
    if found != directory:
        print(
            printable(
                f"specbench: goes on with {found}, which has a part of this; measure.fresh=true"
                " begins anew"
            )
        )
    return found


def _smaller_runs(job: Job, directory: Path, dry: bool) -> Iterator[tuple[int, Path]]:
    """(blocks that are missing, where) of each run on this hardware that may grow into this
    job's.
    """
    stem = directory.name.rpartition("-")[0]
    for path in sorted(directory.parent.glob(f"{stem}-*/{MANIFEST}")):
        run = path.parent
        if run.is_symlink() or ".old" in run.name:
            continue
        try:
            manifest = read_manifest(run)
            _refuse_settings(job, manifest, run)
            with contextlib.nullcontext() if dry else FileLock(run / LOCK, blocking=False):
                ledger = job.compare(record for record, _ in parse_lines(run / RECORDS))
            check_growth(job, manifest, ledger, run)
        except (InputError, Timeout, OSError):  # a run of another kind, or one that is being made
            continue
        here = Machine(**cast(dict[str, Any], hide_identity(environment.machine())))
        if ledger.recorded and manifest.machine.same_hardware(here):
            yield len(ledger.rest), run


def preview(job: Job, directory: Path) -> list[tuple[str, str]]:
    """Returns what a run of ``job`` in ``directory`` would do, as pairs (what, amount); loads and
    writes nothing.
    """
    suite, card = job.source.suite, job.source.card
    records = list(_records_of(directory))
    ledger = job.compare(records)
    if job.config.run.retry and ledger.failed is not None:
        records = [record for record in records if record.block < ledger.failed]
        ledger = job.compare(records)
    kept, left = ledger.kept, len(ledger.rest)
    turns = sum(len(case.turns) * len(block.order) for block in ledger.rest for case in block.cases)
    state = (
        "new" if not kept else f"{kept} blocks are there, {left} are left" if left else "complete"
    )
    rounds = f"rounds: {job.config.measure.rounds}, blocks: {len(job.plan)}"
    lines = [
        ("run", f"{directory}: {state}"),
        ("model", f"{card.name}, {card.dtype}, {_spell_memory(card)}"),
        ("methods", ", ".join(row.name for row in job.rows)),
        ("cases", f"{len(suite.cases)} of {suite.name}, {rounds}"),
        ("requests", f"{turns} left, of at most {job.config.decode.max_new_tokens} tokens each"),
    ]
    lines += [("load", waits) for waits in [_spell_arrivals(job, ledger)] if waits]
    return [*lines, *_estimate(card, directory, records, turns)] if turns else lines


def find_arrivals(job: Job, directory: Path) -> str:
    """How long the run will wait for its requests to arrive, in words; '' if it does not wait, or
    nothing is left.
    """
    if find_last_arrival(job.config.load)[1] == 0:
        return ""
    return _spell_arrivals(job, job.compare(_records_of(directory)))


def _spell_arrivals(job: Job, ledger: Ledger) -> str:
    count, each_s = find_last_arrival(job.config.load)
    stretches = sum(len(block.order) for block in ledger.rest)
    if not stretches * each_s:
        return ""
    whole_s = stretches * each_s
    length = (
        f"{max(1, round(whole_s))} s" if whole_s < 2 * MINUTE else f"{round(whole_s / MINUTE)} min"
    )
    return (
        f"about {length} of arrivals in {stretches} stretches, each of {count} requests within"
        f" {each_s:.3g} s"
    )


def _spell_size(size: float) -> str:
    return f"{size / GB:.1f} GB" if size >= GB else f"{size / MB:.1f} MB"


def _spell_memory(card: ModelCard) -> str:
    """The size of the weights' files, and of the keys and values of one request."""
    path, text = Path(card.path), card.config.get_text_config()
    if not hasattr(text, "hidden_size"):
        return "recorded answers, no weights"
    files = [*path.glob("*.safetensors"), *path.glob("*.bin")] if path.is_dir() else []
    weights = (
        f"{_spell_size(sum(file.stat().st_size for file in files))} of weights"
        if files
        else "weights not here"
    )
    if card.widening is not None:
        made = sum(
            weight.numel() * weight.element_size() for weight in empty_model(card).parameters()
        )
        weights = f"{_spell_size(made)} of weights, made from {path.name}"
    weights = "random weights" if card.path == "random" else weights
    heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", 0)
    size = getattr(text, "head_dim", None) or text.hidden_size // max(
        1, getattr(text, "num_attention_heads", 1)
    )
    cache = (
        2
        * text.num_hidden_layers
        * heads
        * size
        * card.context
        * (4 if card.dtype == "float32" else 2)
    )
    return f"{weights}, {_spell_size(cache)} of keys and values for {card.context} tokens"


def _estimate(
    card: ModelCard, directory: Path, records: Sequence[CaseRecord], turns: int
) -> list[tuple[str, str]]:
    """Time and size of the files, from the records of this run or from the newest run of the same
    model next to it.
    """
    source = directory
    if not records:
        for source in _runs_of_model(card, directory.parent):
            if records := list(_records_of(source)):
                break
    spent = [turn.wall_s for record in records for turn in record.turns]
    if not spent or not sum(spent):
        return [("time", "unknown: there is no earlier run of this model here")]
    each_s, each_bytes = sum(spent) / len(spent), (source / RECORDS).stat().st_size / len(spent)
    answers = f"as in {source.name}, {len(spent)} requests"
    return [
        ("time", f"about {max(1, round(turns * each_s / MINUTE))} min ({answers})"),
        ("files", f"about {_spell_size(turns * each_bytes)} of records"),
    ]


def _records_of(directory: Path) -> Iterator[CaseRecord]:
    if (directory / RECORDS).is_file():
        yield from (record for record, _ in parse_lines(directory / RECORDS))


def _runs_of_model(card: ModelCard, folder: Path) -> list[Path]:
    """The runs in a folder that have the model and dtype, the newest first."""
    found: list[tuple[str, Path]] = []
    for path in folder.glob(f"*/{MANIFEST}"):
        try:
            manifest = read_manifest(path.parent)
        except InputError:
            continue
        same = (manifest.model.name, manifest.model.dtype) == (card.name, card.dtype)
        if same and not path.parent.is_symlink():
            found.append((manifest.created, path.parent))
    return [path for _, path in sorted(found, reverse=True)]
