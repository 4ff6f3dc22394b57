"""A run's answers as the samples that sandboxes for code read (HumanEval's ``samples.jsonl``): task_id, completion.

Beside them stand the method and the round, which a sandbox passes on into its results: ``--passed`` reads them there.
"""

from __future__ import annotations

import json
from pathlib import Path

from specbench.records.record import CONTROL, CaseRecord
from specbench.report.frames.findings import Findings
from specbench.report.tokenizer import find_tokenizer, read_tokenizer

SAMPLES = "samples"
_BEFORE = "a"  # in front of an answer, since a decoder takes the first blank off a text


def write_samples(findings: Findings, tokenizer: Path | None = None) -> dict[str, str]:
    """Method -> a line each finished case: its last answer, blanks at its begin kept, no thinking.

    findings: of one run. tokenizer: by default the run's own. Raises RunError where there is none.
    """
    library = read_tokenizer(tokenizer or find_tokenizer(findings.runs[0]))
    before = library.encode(_BEFORE, add_special_tokens=False).ids
    start = len(library.decode(before))

    def sample(record: CaseRecord) -> str:
        turn = record.turns[-1]
        text = library.decode([*before, *turn.ids[turn.thinking or 0 :]])[start:]
        named = {"task_id": record.case, "completion": text, "method": record.method, "round": record.round}
        return json.dumps(named, ensure_ascii=False) + "\n"

    of_methods = ((reported, name) for reported in findings.reported for name in reported.facts.methods)
    return {name: "".join(map(sample, each.succeeded(name))) for each, name in of_methods if name != CONTROL}
