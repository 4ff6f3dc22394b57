"""What a run did otherwise than the source of a published figure, read off the run's manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specbench.report.data.facts import Facts, read_facts
from specbench.report.data.parameters import read_parameters, read_settings, spell_value
from specbench.report.published.figures import Figure
from specbench.store import Run

NARROWED = ("limit", "first", "sample", "categories", "part", "ids")  # suite settings that leave questions out
UNSTATED = "nothing that the manifest or the source states"
_LENGTH, _DTYPE, _PREFILL = "decode.max_new_tokens", "model.dtype", "prefill"


def same_model(measured: str, published: str) -> bool:
    """A trace names its model with a tail: 'vicuna-7b-v1.3-vanilla-float16-temp-0.0' is 'vicuna-7b-v1.3'."""
    return bool(published) and (measured == published or measured.startswith(f"{published}-"))


def selected(run: Run, method: str, figure: Figure) -> bool:
    """Was the method set as this very row of its table? A row without a temperature is greedy."""
    wanted = {"decode.temperature": "0", **figure.setting}
    found = _settings(run, method)
    return all(_alike(found.get(key), value) for key, value in wanted.items())


def whole(run: Run) -> bool:
    """Were all questions of the suite asked, and is it the official one by their number?"""
    suite = _section(run, "suite")
    official = suite.get("expected") in (None, read_facts(run).planned)
    return official and all(suite.get(key) is None for key in NARROWED)


def unfinished(run: Run, facts: Facts) -> str:
    """'200 of 480 cases are recorded'; '' where all are, or nothing says how many there should be."""
    seen = len({record.case for record in run.records})
    return f"{seen} of {facts.planned} cases are recorded" if facts.planned and seen < facts.planned else ""


def differences(run: Run, facts: Facts, method: str, figure: Figure) -> list[str]:
    """What differs, one entry a thing, the model first; empty where nothing is known to."""
    return [
        *([] if same_model(facts.model, figure.model) else [f"model {facts.model}, not {figure.model}"]),
        *([] if whole(run) else [f"{facts.planned} of the suite's questions"]),
        *filter(None, [unfinished(run, facts)]),
        *_tokenizer(run, facts),
        *_setup(run, facts, method, figure),
        *_corpus(run, method, figure),
    ]


def _setup(run: Run, facts: Facts, method: str, figure: Figure) -> Iterator[str]:
    found = _settings(run, method) | {_DTYPE: facts.dtype}
    for key, theirs in figure.setup.items():
        if key == _PREFILL:
            yield f"they count the prefill as {theirs}"
        elif key in (_LENGTH, _DTYPE) and not facts.timed:
            continue  # the recorded answers have their length, and were computed as they were
        elif not _alike(found.get(key), theirs):
            yield f"{key.removeprefix('model.')} {spell_value(found.get(key))}, not {theirs}"


def _corpus(run: Run, method: str, figure: Figure) -> Iterator[str]:
    """A method's own files against the corpus that the source names."""
    if figure.corpus:
        entry = run.manifest["methods"].get(method)
        files = ", ".join(Path(path).name for path in (entry.get("inputs") or {})) if isinstance(entry, Mapping) else ""
        yield f"corpus of {files}, not {figure.corpus}" if files else f"no corpus, theirs {figure.corpus}"


def _tokenizer(run: Run, facts: Facts) -> Iterator[str]:
    """Answers that were kept as text are tokenised anew; a live run may have been given another tokenizer."""
    given = _section(run, "model").get("tokenizer")
    if not facts.timed and ";" in facts.trace:
        yield f"tokenizer: answers tokenised anew, {facts.trace.rpartition(';')[2].strip()}"
    elif facts.timed and given:
        yield f"tokenizer {Path(str(given)).name}"


def _settings(run: Run, method: str) -> dict[str, Any]:
    """'decode.temperature', 'suite.order', 'model.template' ... and the method's own parameters by their names."""
    return read_settings(run) | read_parameters(run, method)


def _section(run: Run, name: str) -> Mapping[str, Any]:
    config = run.manifest.get("config")
    section = config.get(name) if isinstance(config, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _alike(found: Any, wanted: str) -> bool:
    """A manifest's value against a table's text: 10 is '10', 0.0 is '0', True is 'true'."""
    if isinstance(found, int | float) and not isinstance(found, bool):
        try:
            return float(wanted) == float(found)
        except ValueError:
            return False
    return str(found).lower() == wanted.lower()
