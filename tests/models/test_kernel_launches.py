"""The Triton kernels compile for a GPU that is not here, and fit where their launches count on
it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip(
    "triton", exc_type=ImportError, reason="Triton is not installed: pip install '.[triton]'"
)

ROOT = Path(__file__).resolve().parents[2]

TOO_WIDE = """
import sys
from specbench.models.fast.kernels import tree_attention
# The sums of this tile alone are 128 registers of each lane.
tree_attention.TILES = (tree_attention.Tile(128, 128, 4, 3),)
from scripts.lab import kernels
from scripts.lab.__main__ import main
launch = next(kernels.list_launches(128, "bf16"))
kernels.list_launches = lambda *given: [launch]
sys.exit(main(["kernels", "--sizes", "128", "--dtypes", "bf16"]))
"""

UNALIGNED = """
import sys
from dataclasses import replace
from scripts.lab import kernels
from scripts.lab.__main__ import main
launch = next(kernels.list_products("bf16"))  # of weights whose rows begin at any number
launch = replace(launch, given={**launch.given, "weight_stride": "i32"})
kernels.list_launches = lambda *given: [launch]
sys.exit(main(["kernels", "--sizes", "128", "--dtypes", "bf16"]))
"""

HASTY = """
import sys
from specbench.models.fast.kernels import products
products.gdc_wait = products.gdc_launch_dependents
from scripts.lab import kernels
from scripts.lab.__main__ import main
launch = next(kernels.list_products("bf16"))
kernels.list_launches = lambda *given: [launch]
sys.exit(main(["kernels", "--sizes", "128", "--dtypes", "bf16"]))
"""


def compile_in(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.exhaustive
def test_sixteen_bit_kernels_spill_nothing_and_enough_programs_fit():
    done = compile_in("-m", "scripts.lab", "kernels", "--sizes", "128", "--dtypes", "bf16")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("attend_split") == 12
    assert done.stdout.count("product, ") == 16


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "script", [UNALIGNED, HASTY], ids=["copies of less than 16 bytes", "no wait"]
)
def test_a_product_that_is_slow_or_hasty_is_found(script, monkeypatch, tmp_path):
    # a kept kernel is found by its source, which is the same
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = compile_in("-c", script)
    assert done.returncode == 1
    assert "does not fit: product, 64 x 128 at 128 in bf16" in done.stderr


@pytest.mark.exhaustive
def test_a_tile_that_is_too_wide_is_found():
    done = compile_in("-c", TOO_WIDE)
    assert done.returncode == 1
    assert "does not fit: attend_split, 128 x 128 at 128 in bf16" in done.stderr
