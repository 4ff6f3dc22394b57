"""What the compiler takes for a Triton kernel, and how many of its programs a multiprocessor holds; without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = 90  # compute capability
SHARED_BYTES, PROGRAM_BYTES = 227 * 1024, 1024  # of a multiprocessor; taken by each program besides its own
REGISTERS, WARPS, LANES = 65536, 64, 32  # of a multiprocessor, and lanes of a warp (CUDA C++ Programming Guide, 9.0)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Of one program: shared memory, registers of a lane, and its stack: what did not fit there."""

    shared_bytes: int
    registers: int
    stack_bytes: int
    warps: int

    @property
    def resident(self) -> int:
        """Programs on a multiprocessor of an H100 at a time."""
        by_registers = REGISTERS // (-(-self.registers // 8) * 8 * self.warps * LANES)
        return min(SHARED_BYTES // (self.shared_bytes + PROGRAM_BYTES), by_registers, WARPS // self.warps)


def compile_kernel(
    kernel: Any, given: Mapping[str, Any], warps: int, stages: int, capability: int = HOPPER
) -> Occupancy:
    """Compile for a device that need not be here.

    given: argument -> its type as a string (``*bf16``, ``i32``, ``i32:16`` = a multiple of 16), or its constant value.
    """
    names = kernel.arg_names
    types = {name: value.removesuffix(":16") for name, value in given.items() if isinstance(value, str)}
    constants = {(names.index(name),): value for name, value in given.items() if name not in types}
    aligned = [name for name in types if given[name].startswith("*") or given[name].endswith(":16")]
    signature = {name: types.get(name, "constexpr") for name in names}
    hints = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature, constants, hints)
    target = GPUTarget("cuda", capability, LANES)
    compiled = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    return Occupancy(compiled.metadata.shared, *_read_usage(compiled.asm["cubin"]), warps)


def _read_usage(cubin: bytes) -> tuple[int, int]:
    """(registers of a lane, bytes of its stack), as the assembler has noted them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])
