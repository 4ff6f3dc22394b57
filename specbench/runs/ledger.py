"""The blocks of a run's plan that are done, by its records, and so what a command still has to run.

A run can be stopped and go on, get more methods, cases or rounds, try failed cases again, be merged from parts, or be
previewed (``--dry-run``). All of these ask a ``Ledger``, which reads nothing but the records: so nothing can disagree
with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.measure.plan import LASTING, REFERENCES, Block, Key, starts_span
from specbench.records.manifest import Manifest
from specbench.records.record import CaseRecord
from specbench.records.store import MANIFEST, RECORDS, parse_lines, read_manifest
from specbench.serving.settings import find_last_arrival
from specbench.types import InputError

if TYPE_CHECKING:
    from specbench.runs.job import Job

GB, MB, MINUTE = 1e9, 1e6, 60.0
Recorded = list[tuple[Key, frozenset[str]]]  # cases and round of each recorded block, and its methods, in file order


class Ledger:
    """The blocks of a plan, compared with those in the records.

    A case that lacks methods runs again with these and with vanilla, because two figures are paired within a block
    only. A method that was stopped while it learned across cases starts its span again, and with it every block that
    was recorded from there on.
    """

    def __init__(
        self, plan: Sequence[Block], records: Iterable[CaseRecord] = (), resets: Mapping[str, str] | None = None
    ) -> None:
        """resets: method -> its reset policy; a method without one keeps nothing from case to case."""
        self._plan, self._resets = plan, resets or {}
        self._blocks: dict[int, tuple[set[str], int, set[str]]] = {}
        self.failed: int | None = None  # the number of the first block with a failed case
        self.add(records)

    @classmethod
    def of_job(cls, job: Job, records: Iterable[CaseRecord]) -> Ledger:
        """The ledger of a job's plan."""
        return cls(job.plan, records, {row.name: row.reset for row in job.rows})

    def add(self, records: Iterable[CaseRecord]) -> None:
        """Enter further records, before the ledger is asked anything."""
        for record in records:
            cases, _, methods = self._blocks.setdefault(record.block, (set(), record.round, set()))
            cases.add(record.case)
            methods.add(record.method)
            if record.error and (self.failed is None or record.block < self.failed):
                self.failed = record.block

    @cached_property
    def recorded(self) -> Recorded:
        """The blocks of the records."""
        return [((frozenset(cases), turn), frozenset(methods)) for cases, turn, methods in self._blocks.values()]

    @cached_property
    def kept(self) -> int:
        """The number of recorded blocks that stay; the blocks after them run again."""
        kept = len(self.recorded)
        while (start := self._start_of_cut_span(kept)) is not None:
            kept = start
        return kept

    @cached_property
    def done(self) -> int:
        """The number of complete blocks of the plan."""
        have = _methods_of(self.recorded[: self.kept])
        return sum(have.get(block.key, frozenset()).issuperset(block.order) for block in self._plan)

    @cached_property
    def rest(self) -> list[Block]:
        """The blocks to run, numbered behind those that stay, with the methods that are missing and the references."""
        have = _methods_of(self.recorded[: self.kept])
        rest: list[Block] = []
        for block in self._plan:
            done = have.get(block.key, frozenset())
            if not done.issuperset(block.order):
                order = tuple(name for name in block.order if name not in done or name in REFERENCES)
                rest.append(replace(block, index=self.kept + len(rest), order=order))
        return rest

    @property
    def is_whole(self) -> bool:
        """True if every block of the plan is done."""
        return self.done == len(self._plan)

    @property
    def unplanned(self) -> list[Key]:
        """The recorded blocks that the plan does not have."""
        planned = {block.key for block in self._plan}
        return [key for key, _ in self.recorded if key not in planned]

    def _start_of_cut_span(self, kept: int) -> int | None:
        """The first recorded block in a span of which a method has done some blocks and not all, None without one."""
        recorded = self.recorded[:kept]
        have = _methods_of(recorded)
        starts = []
        for name, policy in self._resets.items():
            for span in self._spans(policy) if policy in LASTING else ():
                done = {key for key in span if name in have.get(key, ())}
                if 0 < len(done) < len(span):
                    starts += [at for at, (key, names) in enumerate(recorded) if key in done and name in names][:1]
        return min(starts, default=None)

    def _spans(self, policy: str) -> list[list[Key]]:
        """The plan's blocks, cut where a method of this policy is reset."""
        spans: list[list[Key]] = []
        for index, block in enumerate(self._plan):
            if starts_span(self._plan, index, policy):
                spans.append([])
            spans[-1].append(block.key)
        return spans


def _methods_of(recorded: Recorded) -> dict[Key, frozenset[str]]:
    """The methods that each block is done with."""
    found: dict[Key, frozenset[str]] = {}
    for key, methods in recorded:
        found[key] = found.get(key, frozenset()) | methods
    return found


def check_growth(job: Job, earlier: Manifest, ledger: Ledger, directory: Path) -> None:
    """Raise InputError unless this job has all that the run has, and more. earlier: the manifest of the run."""
    if earlier.config_hash == job.digest:
        return
    absent = [name for name in earlier.methods if name not in {entry.name for entry in job.entries}]
    fault = ""
    if absent:
        fault = f"it has method {absent[0]}, and this command has not; expected method=[...] with all of its methods"
    elif ledger.unplanned:
        cases, turn = ledger.unplanned[0]
        fault = (
            f"it has case {min(cases)} in round {turn}, and this command has not; expected all of its cases and rounds"
        )
    elif ledger.kept < len(ledger.recorded):
        fault = "a method of it learns across cases (reset), so that more cases make other figures; expected a new run"
    if fault:
        raise InputError(
            f"results directory {directory}: holds a run of another configuration, which cannot grow into this one:"
            f" {fault}, hydra.run.dir=..., or measure.fresh=true"
        )


def preview(job: Job, directory: Path) -> list[tuple[str, str]]:
    """Returns what a run of ``job`` in ``directory`` would do, as pairs (what, amount); loads and writes nothing."""
    records = list(_records_of(directory))
    ledger = Ledger.of_job(job, records)
    if job.config.run.retry and ledger.failed is not None:
        records = [record for record in records if record.block < ledger.failed]
        ledger = Ledger.of_job(job, records)
    kept, left = ledger.kept, len(ledger.rest)
    turns = sum(len(case.turns) * len(block.order) for block in ledger.rest for case in block.cases)
    state = "new" if not kept else f"{kept} blocks are there, {left} are left" if left else "complete"
    rounds = f"rounds: {job.config.measure.rounds}, blocks: {len(job.plan)}"
    lines = [
        ("run", f"{directory}: {state}"),
        ("model", f"{job.card.name}, {job.card.dtype}, {_spell_memory(job)}"),
        ("methods", ", ".join(row.name for row in job.rows)),
        ("cases", f"{len(job.suite.cases)} of {job.suite.name}, {rounds}"),
        ("requests", f"{turns} left, of at most {job.config.decode.max_new_tokens} tokens each"),
    ]
    stretches = sum(len(block.order) for block in ledger.rest)
    if arriving_s := stretches * find_last_arrival(job.config.load)[1]:
        lines.append(("load", f"about {max(1, round(arriving_s / MINUTE))} min of arrivals in {stretches} stretches"))
    return [*lines, *_estimate(job, directory, records, turns)] if turns else lines


def _spell_size(size: float) -> str:
    return f"{size / GB:.1f} GB" if size >= GB else f"{size / MB:.1f} MB"


def _spell_memory(job: Job) -> str:
    """The size of the weights' files, and of the keys and values of one request."""
    path, text = Path(job.card.path), job.card.config.get_text_config()
    if not hasattr(text, "hidden_size"):
        return "recorded answers, no weights"
    files = [*path.glob("*.safetensors"), *path.glob("*.bin")] if path.is_dir() else []
    weights = f"{_spell_size(sum(file.stat().st_size for file in files))} of weights" if files else "weights not here"
    weights = "random weights" if job.card.path == "random" else weights
    heads = getattr(text, "num_key_value_heads", None) or getattr(text, "num_attention_heads", 0)
    size = getattr(text, "head_dim", None) or text.hidden_size // max(1, getattr(text, "num_attention_heads", 1))
    cache = 2 * text.num_hidden_layers * heads * size * job.card.context * (4 if job.card.dtype == "float32" else 2)
    return f"{weights}, {_spell_size(cache)} of keys and values for {job.card.context} tokens"


def _estimate(job: Job, directory: Path, records: Sequence[CaseRecord], turns: int) -> list[tuple[str, str]]:
    """Time and size of the files, from the records of this run or from the newest run of the same model next to it."""
    source = directory
    if not records:
        for source in _runs_of_model(job, directory.parent):
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


def _runs_of_model(job: Job, folder: Path) -> list[Path]:
    """The runs in a folder that have the job's model and dtype, the newest first."""
    found: list[tuple[str, Path]] = []
    for path in folder.glob(f"*/{MANIFEST}"):
        try:
            manifest = read_manifest(path.parent)
        except InputError:
            continue
        same = (manifest.model.name, manifest.model.dtype) == (job.card.name, job.card.dtype)
        if same and not path.parent.is_symlink():
            found.append((manifest.created, path.parent))
    return [path for _, path in sorted(found, reverse=True)]
