"""``specbench export RUN URL``: write a run, or the runs of a sweep, with the report to a folder of an object store.

``specbench report URL`` reads it there. The command can be repeated: after a kill, or when the run has grown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specbench.commands import make_parser
from specbench.names import hide_secrets, printable
from specbench.report.locate import export_runs
from specbench.screen import DONE


def main(argv: Sequence[str]) -> int:
    """Export, and print the number of files. Raises InputError if the run or the folder of the store does not fit."""
    parser = make_parser("export", __doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a run or a sweep")
    parser.add_argument("url", metavar="URL", help="a folder: s3://BUCKET/RUN, gs://..., file:///FOLDER/RUN")
    options = parser.parse_args(argv)
    print(printable(f"{export_runs(options.run, options.url)} files in {hide_secrets(options.url)}"))
    return DONE
