"""``specbench schema [records|manifest]``: the JSON schema of a line of ``records.jsonl``, or of
``manifest.json``.

It is made from the classes that a file is checked against when it is read. A reader also checks
what a schema cannot express: that lists have equal lengths, that counts and times add up, and that
no key is given twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from specbench.commands import make_parser
from specbench.records.manifest import Manifest
from specbench.records.record import SCHEMA, CaseRecord
from specbench.screen import Screen

FILES = {"records": CaseRecord, "manifest": Manifest}


def main(argv: Sequence[str]) -> int:
    """Print the schema."""
    parser = make_parser("schema", __doc__)
    parser.add_argument(
        "file", nargs="?", choices=FILES, default="records", help="(default: %(default)s)"
    )
    file = parser.parse_args(argv).file
    head = {"$schema": GenerateJsonSchema.schema_dialect, "$id": f"urn:specbench:{file}:{SCHEMA}"}
    text = json.dumps(head | TypeAdapter(FILES[file]).json_schema(), indent=2)
    Screen().print(text, markup=False, highlight=False, soft_wrap=True)
    return 0
