"""Measure T(tokens fed, context) of a model and engine on this machine, and keep it as a latency profile.

    python scripts/profile_latency.py model=tiny
    python scripts/profile_latency.py model=vicuna_7b engine=eager --fed 1,2,4,8,16,32,64,128 --rows

The first arguments are those of ``specbench``. Writes <device>-<model>-<engine>-<dtype>.json with its plots beside it;
runs and reports in the same folder pick it up. ``--rows`` adds batches of k rows of w + 1 tokens (N-Grammys, figure 1).
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from specbench.cli import job_of
from specbench.measure.environment import machine, versions
from specbench.measure.latency import Bench, check_points, shape_of, sweep, sweep_rows
from specbench.measure.roofline import best_of, measure_ceilings
from specbench.profile import Profile, Shape, device_name, write_profile
from specbench.report.latency import latency_text
from specbench.report.latency_plot import write_latency_plots
from specbench.stage import set_stage
from specbench.types import InputError


def main() -> int:
    """Measure, print the table, write profile and plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("overrides", nargs="*", help="of specbench: model=..., engine=..., model.dtype=...")
    parser.add_argument("--fed", type=numbers, default=[1, 2, 4, 8, 16, 32, 64], help="tokens a forward, 1 first")
    parser.add_argument("--contexts", type=numbers, default=[25, 100, 500, 2000], help="tokens in the cache")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--rows", action="store_true", help="the grid of row batches too")
    parser.add_argument("--k", type=numbers, default=[1, 2, 4, 8, 16, 32], help="rows of a batch")
    parser.add_argument("--w", type=numbers, default=[0, 1, 3, 7, 15], help="drafted tokens of a row")
    parser.add_argument("--row-contexts", type=numbers, default=[25, 100, 500])
    parser.add_argument("--out", type=Path, default=Path("results/profiles"))
    given = parser.parse_args()
    try:
        profile = measure(given)
    except InputError as error:
        print(f"profile_latency: error: {error}", file=sys.stderr)
        return 2
    path = write_profile(profile, given.out)
    print(latency_text(profile), *[str(file) for file in (path, *write_latency_plots(profile, given.out))], sep="\n")
    return 0


def measure(given: argparse.Namespace) -> Profile:
    """Load what the overrides name and time it. Raises InputError."""
    widest = max(256, *given.fed, max(given.k) * max(given.w))
    job = job_of([f"engine.max_nodes={widest}", "method=[]", *given.overrides])
    torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
    stage = set_stage(job)
    model, device, card = stage.target.model, stage.target.device, job.card
    if model is None:
        raise InputError("model=replay: recorded tokens have no latency; expected a model")
    check_points(stage.engine, given.fed, given.contexts, "fed")
    ceilings = measure_ceilings(device, stage.target.dtype)
    bench, rows = Bench(stage.engine, device, stage.target.vocab_size), None
    if given.rows:
        check_points(stage.engine, [1, max(given.k) * max(given.w) + 1], given.row_contexts, "k x w")
        rows = sweep_rows(bench, given.k, given.w, given.row_contexts, given.rounds)
    found = sweep(bench, given.fed, given.contexts, given.rounds)
    return Profile(
        *(device_name(machine(), str(device)), card.name, stage.engine.kind, card.dtype, "measured", found.grid),
        date=datetime.now(UTC).date().isoformat(), parameters=sum(each.numel() for each in model.parameters()),
        rounds=given.rounds, control=found.control, versions=versions(),
        ceilings=best_of(ceilings, measure_ceilings(device, stage.target.dtype)), rows=rows,
        shape=Shape(**shape_of(model)), buckets=tuple(getattr(getattr(stage.engine, "buckets", None), "widths", ())),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
