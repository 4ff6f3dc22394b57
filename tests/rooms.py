"""The rooms of the source tree: what each is for and which others it may import. One rule for the test and the docs.

``python tests/doc_tables.py`` writes it into docs/architecture.md.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("specbench", "methods")
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Room:
    """A module or a package with all that lies in it, less what has a room of its own.

    may: the rooms that it imports. never: libraries that it must not import. Rooms of specbench without its name.
    """

    what: str
    may: str = ""
    never: str = ""


# From the bottom up.
ROOMS: dict[str, Room] = {
    "input": Room("files of JSON lines, checked against a schema; InputError", never="torch"),
    "hub": Room("whether the Hugging Face hub can be asked", never="torch"),
    "types": Room("the values that travel: Case, Draft, Needs, Prefill, Step", may="input", never="transformers"),
    "names": Room("names in paths and in print: data, never a path, markup or an escape sequence"),
    "screen": Room("standard output and the signals of its end", never="torch"),
    "record": Room("what a run writes: a case's record and its turns", may="input", never="torch"),
    "schema": Room("what a manifest holds", may="input record", never="torch"),
    "consistency": Room("what the records of one run say of each other", may="record", never="torch"),
    "store": Room(
        "the run directory, append-only; atomic writes", may="consistency input record schema", never="torch"
    ),
    "stats": Room("ratios and bootstrap intervals: pure functions", never="torch"),
    "config": Room(
        "the schema of the settings, and the message for a mistyped one",
        may="input names record serving",
        never="torch",
    ),
    "digest": Room("which settings decide the records of a run, and their hash", may="serving", never="torch"),
    "answers": Room("Spec-Bench's answer files, read and written", may="input record store", never="torch"),
    "profile": Room(
        "what a forward costs: measured grids, published fits, bytes and operations",
        may="input names store",
        never="torch",
    ),
    "serving": Room(
        "requests that share a server: settings, arrivals, the schedule, a simulated server",
        may="input profile record",
        never="torch",
    ),
    "method": Room("the contract of a method", may="target types", never="transformers"),
    "target": Room(
        "the engine interface, what a method sees of the target, loading, families, trees, verification",
        may="hub input record types",
    ),
    "target.fast": Room("the fast engine: compact forward, static cache, graphs", may="record target types"),
    "target.eager": Room(
        "the eager engine: the library's forward with tree masks and our own cache",
        may="record target types",
    ),
    "target.tensor_parallel": Room("the fast engine on several processes", may="target target.fast types"),
    "target.timed": Room(
        "either engine driven along recorded answers", may="record target target.eager target.fast types"
    ),
    "target.runner": Room(
        "draft models: the same forwards without a request of the harness",
        may="target target.eager target.fast",
    ),
    "target.choose": Room(
        "which engine drives a model, on how many devices",
        may="record target target.eager target.fast target.tensor_parallel target.timed types",
    ),
    "decode": Room(
        "the loop, the walk, sampling, the ratio test, draft lengths, seeds, the check of an engine",
        may="method profile target types",
    ),
    "lossless": Room("token-level judgement", may="record", never="hydra"),
    "suite": Room("questions, selection, prompts", may="answers hub input record types"),
    "trace": Room("recorded answers of three kinds", may="answers input record store suite types"),
    "measure": Room("what a run needs: plan, clock, energy, environment", may="record types"),
    "material": Room("what a run decodes, read before any weights", may="config names record suite target trace types"),
    "session": Room(
        "one loaded target and its methods, block by block",
        may="decode lossless measure method record suite target target.tensor_parallel types",
    ),
    "serving.session": Room(
        "the same, with requests that share forwards",
        may="decode measure method record serving session suite types",
    ),
    "job": Room(
        "from a configuration to a checked job, without weights",
        may="config decode digest material measure method names record serving session suite target target.choose "
        "trace types",
    ),
    "stage": Room(
        "the loaded target with the methods bound to it",
        may="decode job material measure method record session "
        "target target.choose target.fast target.tensor_parallel target.timed types",
    ),
    "growth": Room(
        "a run that gets more methods, cases or rounds: what is missing, and whether it may",
        may="digest input job measure names record store",
    ),
    "manifest": Room(
        "what a run was made with, and the check of a resumed one",
        may="growth job measure method record session stage suite trace types version",
    ),
    "execution": Room(
        "a job's run: open or resume, decode, write",
        may="digest growth job manifest measure record serving serving.session session stage store types",
    ),
    "preview": Room(
        "what a run would do, without doing it",
        may="growth job measure record serving store types",
    ),
    "report.text": Room(
        "how figures and rows are spelled; tokens as text",
        may="names record store",
        never="torch transformers datasets",
    ),
    "report.data": Room(
        "every figure of a report, from manifest and records",
        may="input profile record report.text stats store",
        never="torch transformers datasets",
    ),
    "report.tables": Room(
        "printed tables: Markdown, LaTeX, csv, terminal",
        may="names profile record report.data report.text screen stats",
        never="torch transformers datasets",
    ),
    "report.plots": Room(
        "the plots, and the one list of them",
        may="names profile record report.data report.text stats store",
        never="torch transformers datasets",
    ),
    "report.page": Room(
        "`report.html` and its token view",
        may="input measure names record report.data report.plots report.tables report.text store",
        never="torch transformers datasets",
    ),
    "report.compat": Room(
        "Spec-Bench's formulas and files",
        may="answers names record report.data report.tables report.text store",
        never="torch transformers datasets",
    ),
    "report.exchange": Room(
        "result files of other harnesses, written from a run and read beside one",
        may="input names record report.data report.tables report.text store",
        never="torch transformers datasets",
    ),
    "report.locate": Room(
        "which run directories are meant", may="names profile store", never="torch transformers datasets"
    ),
    "report.build": Room(
        "runs in, files out",
        may="measure report.data report.page report.plots report.tables report.text store",
        never="torch transformers datasets",
    ),
    "report.published": Room(
        "the papers' figures beside a run's",
        may="report.data report.text store",
        never="torch transformers datasets",
    ),
    "report": Room(
        "the command `specbench report` and what notebooks import",
        may="answers input names report.build report.compat report.data report.exchange report.locate "
        "report.published report.tables report.text screen store",
        never="torch transformers datasets",
    ),
    "launch": Room(
        "a run as a user sees it: display, log, report, exit code",
        may="execution job names record report report.tables report.text screen store target.tensor_parallel",
    ),
    "part": Room("the part of a run that a job has: k/n, split and joined", may="store", never="torch"),
    "merge": Room(
        "the parts of a run, made anywhere, become the run",
        may="digest input measure names part store",
        never="torch",
    ),
    "shards": Room(
        "one run on several workers: what is left of it, and the merge",
        may="execution job manifest measure merge part store types",
    ),
    "groups": Room("the groups of the configuration and their options", never="torch"),
    "composition": Room(
        "the configuration as Hydra composes it; it, `cli` and `sweep` are the rooms that import Hydra",
        may="config digest groups input names part record",
        never="torch transformers",
    ),
    "sweep": Room("jobs on one of Hydra's launchers, and how each ended", may="screen types"),
    "cli": Room(
        "the command `specbench run`: a run, its shards, or a sweep",
        may="composition config execution groups growth job launch measure names preview record shards store sweep "
        "types",
    ),
    "tune": Room(
        "a method's parameters by predicted speedup",
        may="execution job names profile record report.data stats store types",
    ),
    "choose": Room(
        "candidates of methods and parameters, and the best of them for a GPU, a model and a load",
        may="cli composition execution job profile report report.data report.locate report.text stats tune types",
    ),
    "bench": Room(
        "measurements of the harness and the machine, for scripts only",
        may="decode input measure method profile record report.data serving stats store target "
        "target.eager target.fast types",
    ),
    "commands": Room(
        "the commands of `specbench`: one table, a module each, imported when it is asked for",
        may="bench choose cli composition config digest groups input measure names profile record report.build "
        "report.data report.locate report.plots report.tables report.text screen stage stats store suite target "
        "target.choose tune version",
    ),
    "__main__": Room("`python -m specbench`", may="commands"),
    "result": Room(
        "runs from Python: run, load, and what they give",
        may="cli launch record report.build report.data report.locate",
    ),
    "specbench": Room("what `import specbench` offers: run, load, Result", may="result version"),
    "version": Room("the version"),
    "methods.parts.lookup": Room("tables and indices of token sequences", may="methods.parts.trees target types"),
    "methods.parts.draft_lm": Room(
        "draft models, on the host's thread or beside the target",
        may="method target target.runner types",
    ),
    "methods.parts.trees": Room(
        "shapes of draft trees: fixed, grown, drawn",
        may="methods.parts.draft_lm method target types",
    ),
    "methods.parts.heads": Room(
        "trained heads: files, layers, trees", may="input methods.parts.trees method target types"
    ),
    "methods.parts.hf_peer": Room("the library's own loops as methods", may="method target"),
    "methods.parts.runtimes": Room(
        "other runtimes' loops as methods, and the model in their formats",
        may="methods.parts.draft_lm method target target.fast types",
    ),
    "methods.server": Room(
        "a serving engine as a peer: connection, dialects, accounts of acceptance", may="method target types"
    ),
    "methods": Room(
        "the methods: a module, or a package where a method has several files",
        may="methods.parts.draft_lm methods.parts.heads methods.parts.hf_peer methods.parts.lookup "
        "methods.parts.runtimes methods.parts.trees "
        "decode method store target types",
        never="hydra omegaconf",
    ),
}


def room_of(module: str) -> str | None:
    """The room of a dotted module name: the longest prefix that has one."""
    parts = module.split(".")
    names = (".".join(parts[:length]).removeprefix("specbench.") for length in range(len(parts), 0, -1))
    return next((name for name in names if name in ROOMS), None)


def module_of(path: Path) -> str:
    """'specbench/report/cli.py' -> 'specbench.report.cli'; a package's ``__init__`` is the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def sources() -> tuple[Path, ...]:
    """Every file of the installed packages."""
    return tuple(sorted(path for package in ("specbench", "methods") for path in (ROOT / package).rglob("*.py")))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """What a file holds, read once; not to be changed."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, anywhere in it, as dotted names: a module, not a name in it."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if _exists(name) else node.module for name in names}
    return found


def _exists(module: str) -> bool:
    place = ROOT.joinpath(*module.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def imported_rooms(name: str) -> set[str]:
    """The rooms that the files of a room import, itself left out."""
    files = [path for path in sources() if room_of(module_of(path)) == name]
    found = {room_of(module) for path in files for module in imports_of(path) if module.split(".")[0] in PACKAGES}
    return {each for each in found if each} - {name}


def allowed_rooms(name: str) -> set[str]:
    """The rooms that a room may import."""
    return set(ROOMS[name].may.split())


def table() -> str:
    """The rooms as a Markdown table, from the bottom up."""
    lines = ["| room | what it holds | imports (of ours) | never |", "|---|---|---|---|"]
    for name, room in ROOMS.items():
        may, never = (", ".join(f"`{each}`" for each in names.split()) for names in (room.may, room.never))
        lines.append(f"| `{name}` | {room.what} | {may or 'nothing'} | {never} |")
    return "\n".join(lines)
