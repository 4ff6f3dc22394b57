"""Compile the Triton kernels for an H100, with or without one, and print what they take of a multiprocessor.

    python scripts/check_kernels.py                   # head sizes 64, 80 and 128 in bfloat16 and float32
    python scripts/check_kernels.py --sizes 128 --dtypes bf16

Needs Triton only. Exits with 1 where a 16-bit kernel has a stack (spilled registers), or fewer of its programs fit
on a multiprocessor than its launch counts on.
"""

from __future__ import annotations

import argparse
import os
import sys

os.environ.pop("TRITON_INTERPRET", None)  # read when a kernel is defined
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # as before there was a choice

from scripts.lab.kernels import compile_launch, list_launches


def main() -> int:
    """Print the table; 1 if a kernel does not fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[64, 80, 128], help="of a head")
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "fp32"])
    given = parser.parse_args()
    print("kernel | head size | dtype | shared KiB | registers | stack bytes | programs at a time")
    print("---|--:|---|--:|--:|--:|--:")
    unfit = []
    cases = [(size, dtype) for dtype in given.dtypes for size in given.sizes]
    for size, dtype, launch in ((*case, launch) for case in cases for launch in list_launches(*case)):
        found = compile_launch(launch)
        cells = f"{found.shared_bytes / 1024:.0f} | {found.registers} | {found.stack_bytes} | {found.resident}"
        print(f"{launch.label} | {size} | {dtype} | {cells}", flush=True)
        if dtype != "fp32" and (found.stack_bytes or found.resident < launch.needed):
            unfit.append(f"{launch.label} at {size} in {dtype}")
    for each in unfit:
        print(f"does not fit: {each}", file=sys.stderr)
    return 1 if unfit else 0


if __name__ == "__main__":
    sys.exit(main())
