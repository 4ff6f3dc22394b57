"""The definition of each printed number, as a report prints it."""

from __future__ import annotations

from specbench.report.text.label import BLANK
from specbench.stats import MIN_CASES, RESAMPLES

DEFINITIONS: dict[str, str] = {
    "Tokens": "Ids that were emitted, the prefill's included, up to and including the first end-of-sequence token. The "
    "harness counts them for every method alike; text is never tokenised again.",
    "Decode step": "One forward of the target after the prefill.",
    "MAT": "Mean accepted tokens: tokens emitted by decode steps over decode steps, all steps of all cases alike. "
    "Vanilla is 1. The prefill's token is in neither.",
    "Tokens/s": "All tokens over all time, prefill included. Decode tokens/s leaves out the prefill's time and token.",
    "Speedup": "Time per token of vanilla over time per token of the method, both summed over the cases that both "
    "finished. Each case ran under both in the same process. With several rounds a case's time is the median round.",
    "Speedup over HF": "The same against the library's own generate loop, the denominator of most papers.",
    "Predicted (modelled)": "Never measured: speedup of the decode steps alone, from the recorded tokens fed, the time "
    "that a latency profile gives a forward of so many at that context, and the drafter's own time.",
    "Speedup (time only)": "Accepted lengths were replayed: a model, maybe of random weights, was driven along "
    "recorded answers, so a step's time is real and what it emits is the record's. No speedup is claimed. A method "
    "that drafts from what the model computes has its time a step (Step ms) alone.",
    "Efficiency": "Measured speedup of the decode steps over what the profile's forwards alone would give: what a "
    "method loses to drafting and host time. Above 1 the profile is worse than what the run saw, or it is noise.",
    "Cost per million": "Of a million tokens, prefills included, at measure.price_per_hour.",
    "Joules per token": "What the GPUs in use took between the start and the end of every request, by the driver's own "
    "counters, over all tokens. Blank where nothing counts it.",
    "Staircase": "The decode speedup as a product: MAT, times vanilla's forward over the method's, times what drafting "
    "and the rest of a step leave of it (overhead), times what is in no phase (remainder).",
    "Tie": "Of two methods: the interval of their ratio, paired by case, holds 1. The best of a column is bold only "
    "where it ties with none.",
    "Time to first token": "From the request to its first token: the prefill.",
    "Inter-token latency": "The wait for the next tokens: one decode step, however many tokens it brings.",
    "Interval": f"95 % percentile bootstrap over cases ({RESAMPLES} resamples): how far the figure would move on other "
    f"prompts of this kind. None is given under {MIN_CASES} cases.",
    "A/A control": "Vanilla timed twice: the median of the blocks' ratios (under load, the stretches'). Its interval "
    "is that of re-timing this very suite; it should hold 1 and be narrower than 1 %. It says nothing about other "
    "prompts.",
    "Acceptance": "Accepted draft nodes over proposed ones. Blank for vanilla and for methods with their own loop.",
    "Position": "Depth in the draft, 1 right after the last emitted token. Accepted of drafted: of the steps whose "
    "draft was that deep. Accepted of reached: of those that had accepted every earlier position.",
    "Source": "The part of a method that a drafted token came from, as the method names it.",
    "Draft rate": "Decode steps with a draft over all decode steps.",
    "Tokens fed": "Mean rows a forward of the target: the last token and every node of the draft.",
    "Drafting": "Of a replayed target: mean microseconds a decode step in the drafter's own code, draft and update "
    "together. Vanilla's is what the loop and the clock cost by themselves. A lower bound: no forward runs in between "
    "and empties the processor's caches.",
    "Phases": "Mean milliseconds a decode step: prepare (masks and positions), draft, forward (the target), verify, "
    "update (cache and the method's own state). Prefill is milliseconds a turn.",
    "State": "The most bytes that the method kept between steps, weights apart.",
    "Lossless": "Cases whose ids equal vanilla's, or where every emitted id, judged with the whole answer in one "
    "forward, was the argmax or tied with it within the tolerance for the dtype. Blank when sampling.",
    "Errors": "Cases that failed. They are left out of the method's figures and of its pairing with vanilla.",
    BLANK: "Does not apply, or was not measured. It is never a zero.",
}
