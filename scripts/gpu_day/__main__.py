"""Measure on a GPU what no other machine shows: three calls of at most nine minutes, a file of each section.

    python scripts/gpu_day truth --out DAY        # what is chosen and right: kernels, ids, memory
    python scripts/gpu_day engine --out DAY       # the fast engine of a 7B shape against its goals
    python scripts/gpu_day product --out DAY      # latency profile, methods of each kind at 7B, through the command
    python scripts/gpu_day truth engine product --out DAY --rehearse     # everything on a small shape, anywhere

Runs from a checkout. truth and engine need torch, transformers, numba, psutil and pydantic; product needs all that the
package depends on, and names what is missing. A section writes <call>-<section>.json as it ends, a call <call>.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.gpu_day import engine, product, truth  # noqa: E402
from scripts.gpu_day.day import Day, Section  # noqa: E402

CALLS: dict[str, list[tuple[str, Section]]] = {
    "truth": truth.SECTIONS,
    "engine": engine.SECTIONS,
    "product": product.SECTIONS,
}


def main() -> int:
    """Run the calls; 1 if a section failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", nargs="+", choices=CALLS)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--rehearse", action="store_true", help="small shapes and few rounds, also on a CPU")
    parser.add_argument("--minutes", type=float, default=9, help="of a call; sections that begin later are left out")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], help="sections, with commas")
    given = parser.parse_args()
    known = [name for sections in CALLS.values() for name, _ in sections]
    if unknown := sorted(set(given.only) - set(known)):
        parser.error(f"--only {','.join(unknown)}: no such section; expected of {', '.join(known)}")
    day = Day(given.out, given.rehearse, given.minutes)
    good = [day.run(call, CALLS[call], given.only) for call in given.calls]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
