"""Time our methods against the loops of transformers, and of other runtimes that are installed.

Same model, prompts and lengths of drafts, A B B A on every prompt.

    python scripts/compare_peers.py model=tiny
    python scripts/compare_peers.py model=random_110m model.threads=2 --dtype bfloat16 --engine eager

Above 1 the peer takes longer for a token. cpu: ratio of a prompt's least processor time; wall: of its median time by
the clock. In brackets 95 % over prompts. A/A: the same method's first runs over its second ones; a
difference within their spread does not count. Any setting of ``specbench`` may be given; see conf/model/.
"""

from __future__ import annotations

import argparse
import sys

import torch
import transformers

from scripts.lab.peers import choose_pairs, compare, format_peers, in_turn, pair_named, require_equal, time_pair
from specbench.records.record import EngineKind
from specbench.runs.cli import job_of
from specbench.runs.stage import set_stage
from specbench.screen import with_exit_code
from specbench.stats import MIN_CASES
from specbench.types import InputError


@with_exit_code
def main() -> None:
    """Time pair by pair on one loaded model, print the table."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", default=["model=tiny"])
    parser.add_argument("--pairs", nargs="+", metavar="OURS:PEER", help="other runtimes: on a CPU in float32 only")
    parser.add_argument("--engine", choices=(EngineKind.FAST, EngineKind.EAGER), default=EngineKind.FAST)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=int, default=14, help="of the suite, its tasks in turn")
    parser.add_argument("--blocks", type=int, default=3, help="rounds of A B B A on every prompt")
    parser.add_argument("--tokens", type=int, default=64, help="the most to emit for a prompt")
    given = parser.parse_intermixed_args()
    given.pairs = given.pairs or choose_pairs(given.dtype)
    names = sorted({name for pair in given.pairs for name in pair_named(pair)})
    settings = [*given.overrides, f"engine={given.engine}", f"model.dtype={given.dtype}", f"method=[{','.join(names)}]"]
    job = job_of([*settings, f"decode.max_new_tokens={given.tokens}"])
    if job.prompts is None:
        raise InputError(f"model={job.card.name}: recorded tokens have no peer; expected a model")
    prompts = in_turn([(case.category, job.prompts.ids(case.turns[:1], [])) for case in job.suite.cases], given.prompts)
    if len(prompts) < MIN_CASES or given.blocks < 1:
        raise InputError(f"prompts={len(prompts)}, blocks={given.blocks}: expected at least {MIN_CASES} and 1")
    if "hf_compiled" in names:  # no slot that is never used
        job = job_of([*settings, f"method.hf_compiled.length={max(map(len, prompts)) + given.tokens}"])
    torch.set_num_threads(job.config.model.threads or torch.get_num_threads())
    methods, found = {entry.name: entry.method for entry in job.entries}, []
    for pair in given.pairs:
        require_equal(pair, *(methods[name] for name in pair_named(pair)))
    with set_stage(job) as stage:
        for pair in given.pairs:
            sides = {name: methods[name] for name in pair_named(pair)}
            timed = time_pair(stage.engine, stage.target.device, sides, prompts, given.blocks, given.tokens)
            found.append(compare(*timed, cpu=stage.target.device.type == "cpu"))
    about = {"model": job.card.name, "engine": given.engine, "dtype": job.card.dtype, "tokens": given.tokens,
             "prompts": len(prompts), "blocks": given.blocks, "threads": torch.get_num_threads()}  # fmt: skip
    print(" ".join(f"{key}={value}" for key, value in about.items()) + "\n\n" + format_peers(found))


if __name__ == "__main__":
    sys.exit(main())
