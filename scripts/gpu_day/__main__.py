"""Measure on a GPU what no other machine shows: three calls of at most nine minutes, with two files of each.

    python scripts/gpu_day wheels --out WHEELS    # before the day: fetches the packages that a bare image lacks
    python scripts/gpu_day check                  # names the modules that are missing
    python scripts/gpu_day truth --out DAY        # what is right, and what is chosen: kernels, ids, memory
    python scripts/gpu_day engine --out DAY       # the fast engine of a 7B shape against its goals
    python scripts/gpu_day product --out DAY      # latency profile, methods of each kind at 7B, through the command
    python scripts/gpu_day truth engine product --out DAY --rehearse     # everything on a small shape, anywhere

Runs from a checkout. truth and engine need torch, transformers, numba, psutil and pydantic; product needs all that the
package depends on. A call leaves <call>.md and <call>.tar.gz, which are written again whenever a section ends.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
CALLS = ("truth", "engine", "product")


def main() -> int:
    """Run the calls; 1 if a section failed, or if modules are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", nargs="+", choices=("wheels", "check", *CALLS))
    parser.add_argument("--out", type=Path, default=Path("day"), help="folder of the results")
    parser.add_argument("--rehearse", action="store_true", help="small shapes and few rounds, also on a CPU")
    parser.add_argument("--minutes", type=float, default=9, help="of a call, after which it ends")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="sections, with commas")
    given = parser.parse_args()
    from scripts.gpu_day import wheels  # imports nothing that may be missing

    if "wheels" in given.calls:
        wheels.fetch(given.out)
        return 0
    if "check" in given.calls:
        missing = wheels.list_missing()
        print("\n".join(f"missing: {each}" for each in missing) or "nothing is missing")
        return int(bool(missing))
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
    from scripts.gpu_day.call import Call, select

    parts = {name: importlib.import_module(f"scripts.gpu_day.{name}").SECTIONS for name in given.calls}
    known = dict.fromkeys(section.name for sections in parts.values() for section in sections)
    if unknown := sorted(set(given.only) - set(known)):
        parser.error(f"--only {','.join(unknown)}: no such section; expected of {', '.join(known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what runs ends too
    good = True
    for name, sections in parts.items():
        with tempfile.TemporaryDirectory(prefix="gpu_day-") as work:
            chosen = select(sections, given.only)
            good &= Call(name, chosen, given.out, Path(work), given.minutes, given.rehearse).run()
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
