"""Measure T(tokens fed, context) of a model and engine on this machine, and keep it as a latency
profile.

    specbench profile model=tiny
    specbench profile model=vicuna_7b engine=eager --fed 1,2,4,8,16,32,64,128 --rows

The first arguments are those of ``specbench``. Writes <device>-<model>-<engine>-<dtype>.json with
its plots next to it; runs and reports in the same folder pick it up. ``--rows`` adds batches of k
rows of w + 1 tokens (N-Grammys, figure 1).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.commands import make_parser
from specbench.input import InputError, file_path, whole_numbers

# settings that change what a forward costs
FORWARD = re.compile(r"[+~]*(model|engine|experiment|size|hydra)\b")

if TYPE_CHECKING:
    from specbench.profile import Profile


def main(argv: Sequence[str]) -> int:
    """Measure, print the table, write profile and plots. Raises InputError."""
    kind = argparse.RawDescriptionHelpFormatter
    parser = make_parser("profile", __doc__, formatter_class=kind)
    add = parser.add_argument
    add(
        "overrides",
        nargs="*",
        default=[],
        help="of specbench: model=..., engine=..., model.dtype=...",
    )
    add(
        "--fed",
        type=whole_numbers,
        default=[1, 2, 4, 8, 16, 32, 64],
        metavar="N,...",
        help="tokens fed, 1 first",
    )
    add(
        "--contexts",
        type=whole_numbers,
        default=[25, 100, 500, 1800],
        metavar="N,...",
        help="tokens in the cache",
    )
    add(
        "--rounds",
        type=int,
        default=12,
        metavar="N",
        help="times that each point is measured (default 12)",
    )
    add("--rows", action="store_true", help="the grid of row batches too")
    add(
        "--k",
        type=whole_numbers,
        default=[1, 2, 4, 8, 16, 32],
        metavar="N,...",
        help="rows of a batch",
    )
    add(
        "--w",
        type=whole_numbers,
        default=[0, 1, 3, 7, 15],
        metavar="N,...",
        help="drafted tokens of a row",
    )
    add(
        "--row-contexts",
        type=whole_numbers,
        default=[25, 100, 500],
        metavar="N,...",
        help="tokens in their cache",
    )
    add(
        "--out",
        type=file_path,
        default=Path("results/profiles"),
        metavar="DIR",
        help="where to write (default results/profiles)",
    )
    given = parser.parse_intermixed_args(argv)
    from specbench.profile import require_folder, write_profile
    from specbench.report.plots.latency import write_latency_plots
    from specbench.report.tables.modelled import format_latency

    require_folder(given.out)
    profile = measure(given)
    path = write_profile(profile, given.out)
    print(
        format_latency(profile),
        *[str(file) for file in (path, *write_latency_plots(profile, given.out))],
        sep="\n",
    )
    return 0


def measure(given: argparse.Namespace) -> Profile:
    """Load what the overrides name and time it. Raises InputError."""
    import torch  # here, as --help needs none of these

    from specbench.decode.latency import (
        Bench,
        Limits,
        best_of,
        measure_ceilings,
        sweep,
        sweep_rows,
        traits_of,
    )
    from specbench.measure.environment import machine, versions
    from specbench.models.choose import TENSOR
    from specbench.profile import Profile, device_name
    from specbench.runs.job import job_of, refuse_idle_in
    from specbench.runs.session import set_stage

    for item in given.overrides:
        if not FORWARD.match(item):
            raise InputError(
                f"{item}: has no effect on a profile; expected settings of model and engine"
            )
    refuse_idle_in(["method=[]", *given.overrides])
    widest = max(256, *given.fed, max(given.k) * max(given.w))
    job = job_of([f"engine.max_nodes={widest}", "method=[]", *given.overrides])
    if job.source.trace is not None:
        raise InputError("model.trace: recorded tokens have no latency; expected a model alone")
    limits = Limits(job.config.engine.largest_draft, job.source.card.context)
    rows_axes = (given.k, given.w, given.row_contexts) if given.rows else None
    limits.check(given.rounds, given.fed, given.contexts, rows_axes)
    torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
    with set_stage(job) as stage:
        device = stage.target.device
        ceilings = measure_ceilings(device, stage.target.dtype)
        bench = Bench(stage.engine, device, stage.target.vocab_size)
        rows = (
            sweep_rows(bench, given.k, given.w, given.row_contexts, given.rounds)
            if given.rows
            else None
        )
        grid, control = sweep(bench, given.fed, given.contexts, given.rounds)
        return Profile(
            device_name(machine(), str(device), job.way, job.config.model.gpus),
            *(job.source.card.name, stage.engine.kind, job.source.card.dtype, "measured", grid),
            date=datetime.now(UTC).date().isoformat(),
            rounds=given.rounds,
            control=control,
            versions=versions(),
            ceilings=best_of(ceilings, measure_ceilings(device, stage.target.dtype)),
            rows=rows,
            **traits_of(stage.engine, stage.target.model, job.way == TENSOR),
        )
