"""A run's answers as the samples that sandboxes for code read (HumanEval's ``samples.jsonl``): task_id, completion.

Beside them stand the method and the round, which a sandbox passes on into its results: ``--passed`` reads them there.
"""

from __future__ import annotations

import json
from pathlib import Path

from specbench.names import file_name
from specbench.record import CONTROL, CaseRecord
from specbench.report.data.findings import Findings
from specbench.report.text.tokenizer import find_tokenizer, read_tokenizer
from specbench.store import write_atomically

SAMPLES = "samples"
_BEFORE = "a"  # in front of an answer, since a decoder takes the first blank off a text


def export_samples(findings: Findings, output: Path, tokenizer: Path | None = None) -> list[Path]:
    """Write ``<method>/samples.jsonl``: the last answer of every finished case, blanks at its begin kept, no thinking.

    findings: of one run. tokenizer: by default the run's own. Raises RunError where there is none.
    """
    library, files = read_tokenizer(tokenizer or find_tokenizer(findings.runs[0])), []
    before = library.encode(_BEFORE, add_special_tokens=False).ids
    start = len(library.decode(before))

    def sample(record: CaseRecord) -> str:
        turn = record.turns[-1]
        text = library.decode([*before, *turn.ids[turn.thinking or 0 :]])[start:]
        named = {"task_id": record.case, "completion": text, "method": record.method, "round": record.round}
        return json.dumps(named, ensure_ascii=False) + "\n"

    for reported in findings.reported:
        for method in (name for name in reported.facts.methods if name != CONTROL):
            path = output / file_name(method) / f"{SAMPLES}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, "".join(map(sample, reported.succeeded(method))))
            files.append(path)
    return files
