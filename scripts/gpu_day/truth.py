"""Check that the kernels and the fast engine are right on this machine, before anything is timed, and use of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from scripts.gpu_day.call import Section
from scripts.gpu_day.day import Day, Goal, Row, ids_of
from scripts.gpu_day.kernels import compare_kernels, multiply_few_rows, plan_attention
from scripts.lab.materials import random_model
from specbench.decode.check import check_engine
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.measure.environment import machine, versions
from specbench.method import Method
from specbench.models.eager.engine import EagerEngine
from specbench.models.fast.attention import FLEX, FUSED, SDPA, TRITON, FastOptions
from specbench.models.fast.engine import FastEngine
from specbench.models.load import ASSETS, load_model, read_card
from specbench.types import Draft, Needs, Step

SMALL = {
    "vocab_size": 499, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.4, "pad_token_id": 0,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral, window": ("mistral", {"sliding_window": 12}),
    "qwen2, mixed": ("qwen2", {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "phi3": ("phi3", {"sliding_window": None}),
}
TOGETHER = 3  # requests that share forwards


def describe_machine(day: Day) -> Iterator[Row]:
    """Describe the device, the machine and the versions."""
    known = {"device": str(day.device), **versions(), **machine()}
    yield from ({"name": name, "value": value} for name, value in known.items())


def check_kernels(day: Day, way: str, wide: bool) -> Iterator[Row]:
    """Check the kernels of a way against float64, then the ids of its engine against the eager engine's in float32.

    wide: on drawn trees of every shape; else on the shapes of the 7B.
    """
    from specbench.models.fast.kernels import judge  # here: needs Triton

    if day.rehearse:  # bfloat16 is wrong in Triton's interpreter
        cases = judge.list_few(torch.float16, 2, 4, 64, [40], (1, 8), 256, 704, 80, 499)
    elif wide:
        cases = judge.list_wide()
    else:
        cases = judge.list_few(day.dtype, 32, 1, 128, [None], (1, 8, 64, 96), 4096, 11008, 4096, 32000)
    errors: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        if isinstance(case, judge.AttentionCase) == (way == TRITON):
            error = day.attempt(partial(case.measure, day.device))
            if isinstance(error, float) and error <= 1:
                errors[str(case.dtype).removeprefix("torch.")].append(error)
            else:
                yield Goal(f"{case}: error over its limit", error, 1)
    for dtype, found in errors.items():
        yield Goal(f"{len(found)} cases in {dtype}: largest error over its limit", max(found), 1)
    yield from compare_ids(day, way, cases=1)


def compare_ids(day: Day, way: str = SDPA, cases: int | None = None) -> Iterator[Row]:
    """Compare ids and logits of the fast and the eager engine on small models of every family in float32."""
    day.bind(random_model("llama", SMALL, torch.float32, day.device))
    families = list(FAMILIES)[: 1 if day.rehearse else None]
    tokens = 7 if day.rehearse else 64
    yield from equality(families, day.few_methods, day.device, day.cases if cases is None else cases, way, tokens)


def equality(
    families: Sequence[str], methods: Mapping[str, Method], device: torch.device, cases: int, way: str, tokens: int
) -> Iterator[Goal]:
    """Count the requests whose ids differ between the engines, and measure the largest difference of logits.

    families: of ``FAMILIES``. cases: requests of each family and method. way: of ``engine.attention``. Requests that
    share forwards are given drafts with the right tokens, and must emit three tokens a step.
    """
    diverged, together, worst, requests = 0, 0, 0.0, 0
    for family, extra in map(FAMILIES.__getitem__, families):
        model = random_model(family, {**SMALL, **extra}, torch.float32, device)
        fast = FastEngine(model, 512, frozenset(), 128, options=FastOptions(attention=way, compiled=False))
        engines = [EagerEngine(model, 512, frozenset(), 128), fast]
        check_engine(fast, model)
        of_eager, of_fast = (_read_logits(engine) for engine in engines)
        worst = max(worst, float((of_eager - of_fast).abs().max() / of_eager.abs().max()))
        for method, case in product(methods.values(), range(cases)):
            ids, others = (ids_of(engine, method, _prompt(case, 499), tokens) for engine in engines)
            diverged += ids != others
            requests += 1
        prompts = [_prompt(case, 499)[: 80 - 9 * case] for case in range(TOGETHER)]
        answers = [ids_of(engines[0], methods["vanilla"], prompt, tokens) for prompt in prompts]
        together += decode_together(fast, prompts, answers) != answers
    yield Goal(f"float32 ids by {way} that differ from the eager engine's, of {requests} requests", float(diverged), 0)
    yield Goal(f"batches of {TOGETHER} by {way} that do not emit these ids, of {len(families)}", float(together), 0)
    yield Goal("float32 logits, largest difference over their largest", worst, 1e-5)


def decode_together(engine: FastEngine, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> list[list[int]]:
    """Return what requests emit in shared forwards over trees of a wrong token, the right one, and one after it."""
    steps = (len(answers[0]) - 1) // 3
    batch = engine.batch(len(prompts), max(map(len, prompts)) + len(answers[0]))
    handles = [batch.open(prompt, len(answers[0]), Walk(None, 0), Needs()) for prompt in prompts]
    found = [[read.token] for handle in handles if (read := batch.prefill(handle))]
    for _ in range(steps):
        right = [answer[len(own) : len(own) + 2] for own, answer in zip(found, answers, strict=True)]
        drafts = [Draft([(one + 1) % 499, one, two], [-1, -1, 1]) for one, two in right]
        batch.forward([*zip(handles, drafts, strict=True)])
        for own, step in zip(found, batch.settle([len(answers[0])] * len(handles)), strict=True):
            own += step.emitted if isinstance(step, Step) else []
    batch.end()
    return found


@torch.inference_mode()
def _read_logits(engine: Any) -> torch.Tensor:
    needs = Needs(prompt_topk=499, node_topk=499)
    top = engine.start(_prompt(9, 499), 4, Walk(None, 0), needs, Clock(engine.device)).topk
    return torch.zeros_like(top.logits).scatter_(1, top.ids, top.logits)


def look_at_ties(day: Day) -> Iterator[Row]:
    """Count the requests whose ids differ between a method and vanilla for the bundled model in bfloat16.

    The gap at the difference is the amount by which the target's own teacher-forced logits prefer another token; it is
    small for a tie.
    """
    card = read_card(path=str(ASSETS / "tiny"), dtype="bfloat16", device=str(day.device))
    model = load_model(card)
    day.bind(model)
    engine = FastEngine(model, 1024, frozenset(), 128, options=FastOptions(compiled=False))
    diverged, requests, worst = 0, 0, 0.0
    for name, case in product([name for name in day.few_methods if name != "vanilla"], range(2 * day.cases)):
        prompt = _prompt(case, card.vocab_size)
        truth, ids = (ids_of(engine, day.methods[each], prompt, day.tokens) for each in ("vanilla", name))
        requests += 1
        if truth != ids:
            diverged += 1
            worst = max(worst, *engine.gaps(prompt, ids))
    kind = str(engine.dtype).removeprefix("torch.")
    yield Goal(f"{kind} ids that differ from vanilla's, of {requests} requests", float(diverged))
    yield Goal(f"{kind} largest gap to the argmax where they differ", worst)


def _prompt(case: int, vocab: int) -> list[int]:
    """A prompt whose words repeat, so that lookups find drafts."""
    words = [[(31 * case + 7 * word + place) % vocab for place in range(5)] for word in range(6)]
    return [token for repeat in range(3) for word in words[repeat:] for token in word]


def grow_and_run_out(day: Day) -> Iterator[Row]:
    """Compare the ids of a short request before and after a long one, which moved the cache, and a failed one."""
    day.bind(day.model)
    engine, vanilla = day.engine, day.methods["vanilla"]
    short = day.prompts[0][:50]
    first = ids_of(engine, vanilla, short, day.tokens)
    ids_of(engine, vanilla, (day.prompts[0] * 40)[: engine.context - 200], day.tokens)
    after_long = ids_of(engine, vanilla, short, day.tokens)
    yield Goal("ids that differ after a long request", float(after_long != first), 0)
    context, engine.context = engine.context, 1 << 42
    refused = 0.0
    try:
        engine.reserve(1 << 41)
    except RuntimeError:  # torch's error for memory that is not there
        refused = 1.0
    finally:
        engine.context = context
    yield Goal("a request without memory is refused", refused, 1, least=True)
    after_refusal = ids_of(engine, vanilla, short, day.tokens)
    yield Goal("ids that differ after a request without memory", float(after_refusal != first), 0)


MACHINE = Section("machine", describe_machine, 5, "machine")


def list_checks(wide: bool, estimate_s: float) -> list[Section]:
    """List the sections that check the kernels, which everything that times them needs."""
    return [
        Section(f"check-{way}", partial(check_kernels, way=way, wide=wide), estimate_s, f"check-{way}")
        for way in (TRITON, FUSED)
    ]


SECTIONS = [
    MACHINE,
    *list_checks(wide=True, estimate_s=100),
    Section("ids", compare_ids, 60),
    Section("ties", look_at_ties, 20),
    Section("memory", grow_and_run_out, 30),
    Section("plans", plan_attention, 20),
    Section("kernels", partial(compare_kernels, way=SDPA), 20),
    Section("products", multiply_few_rows, 10),
    Section("kernels-triton", partial(compare_kernels, way=TRITON), 30, TRITON, needs=("check-triton",)),
    Section("kernels-flex", partial(compare_kernels, way=FLEX), 90, FLEX),
]
