"""``specbench merge SHARD... --out RUN``: the parts of a run, made anywhere, become the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specbench.commands import make_parser
from specbench.input import InputError, file_path
from specbench.names import printable
from specbench.records.store import point_latest
from specbench.runs.parts import merge
from specbench.screen import FAILED, fail


def main(argv: Sequence[str]) -> int:
    """Exit code: 0 merged, 1 the disk is full, 2 the parts do not allow it."""
    parser = make_parser("merge", "Merge the parts of a run into the run.")
    parser.add_argument(
        "shards",
        nargs="+",
        type=file_path,
        metavar="SHARD",
        help="directory of a part (suite.part=k/n)",
    )
    parser.add_argument(
        "--out", required=True, type=file_path, metavar="RUN", help="directory of the run"
    )
    parser.add_argument(
        "--any-versions", action="store_true", help="other library versions are a warning, no error"
    )
    options = parser.parse_args(argv)
    try:
        manifest = merge(options.shards, options.out, options.any_versions)
    except InputError as error:
        return fail(str(error), "specbench merge")
    except OSError as error:
        print(printable(f"specbench merge: {error.filename}: {error.strerror}"), file=sys.stderr)
        return FAILED
    point_latest(options.out)
    print(
        printable(
            f"{manifest.suite.cases} cases of {len(manifest.shards)} parts are in {options.out}"
        )
    )
    print(printable(f"its page: specbench report {options.out}"))
    return 0
