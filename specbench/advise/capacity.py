"""The most requests that each candidate serves under a latency objective, on a simulated server.

Requests are drawn from the recorded ones; a step takes the profile's time, drafting the recorded one. Times of the
first token include the queue and the prompts, which ``--load`` leaves out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from specbench.advise.choose import Candidate
from specbench.profile import Profile
from specbench.records.record import VANILLA
from specbench.serving.objective import LIMITS, Boundary, Objective, Search
from specbench.serving.scheduler import NEVER
from specbench.serving.settings import CLOSED, draw_arrivals
from specbench.serving.simulate import recorded_answers


def describe_capacity(
    found: Sequence[Candidate], profile: Profile, objective: Objective, kind: str, shape: float, places: int
) -> Iterator[str]:
    """The lines of ``specbench choose --slo``: vanilla's boundary, then the candidates', the largest load first.

    kind: closed, or how requests arrive; shape: of gamma. places: concurrent requests of an open loop.
    """
    limits = ", ".join(f"{name} <= {limit:g} s" for name in LIMITS if (limit := getattr(objective, name)) < NEVER)
    unit = "requests at once" if kind == CLOSED else f"requests a second, {kind}, at most {places} at once"
    yield f"the most {unit}, with {limits} for {objective.share:.4g} of them; simulated, 95 % confidence of each load"
    names = {"vanilla": (found[0].entry, VANILLA), **{each.name: (each.entry, each.method) for each in found}}
    arrivals = None if kind == CLOSED else lambda rate, seed: draw_arrivals(kind, rate, seed, shape)
    boundaries = {}
    for name, (entry, method) in names.items():
        print(f"simulating {name}", file=sys.stderr, flush=True)
        answers = recorded_answers(entry.succeeded(method), drafting=True)
        boundaries[name] = Search(profile, answers, objective, arrivals, places).boundary()
    for name in ["vanilla", *sorted(names.keys() - {"vanilla"}, key=lambda each: (-boundaries[each].holds, each))]:
        yield f"    {name}: {_spell(boundaries[name])}"


def _spell(found: Boundary) -> str:
    holds = f"holds at {found.holds:.4g}" if found.holds else "holds at no load"
    fails = f", fails at {found.fails:.4g}" if found.fails < NEVER else ", fails at no load that was tried"
    grows = f"; the queue only grows at {found.saturated:.4g}" if found.saturated < NEVER else ""
    return f"{holds}{fails}{grows}"
