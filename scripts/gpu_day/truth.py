"""Check that the kernels, the fast engine and its use of memory are right on this machine, and time the kernels.

Attention and matrix products of a 7B shape's step are each compared with reading their memory once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from scripts.gpu_day.call import Section
from scripts.gpu_day.day import Day, Goal, Row, ids_of
from scripts.lab.materials import random_model
from specbench.decode.check import check_engine
from specbench.decode.latency import measure_ceilings
from specbench.decode.walk import Walk
from specbench.measure.clock import Clock
from specbench.measure.environment import machine, versions
from specbench.method import Method
from specbench.models.eager.engine import EagerEngine
from specbench.models.fast.attention import FLEX, FUSED, SDPA, TRITON, FastOptions, find_attention
from specbench.models.fast.engine import FastEngine
from specbench.models.fast.masks import TreeMask, pack_bits
from specbench.models.load import ASSETS, load_model, read_card
from specbench.types import Draft, Needs

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
HEADS, HEAD = 32, 128  # query heads, size of a head
ROUNDS = 20
SPREAD = 256 << 20  # [bytes] that calls in turn read: several times a cache, as the layers of a step do
FLEX_SHAPES = [(2048, 8), (2048, 64)]  # (keys, rows): each is compiled, in many seconds
PRODUCTS = [(4096, 12288), (4096, 4096), (4096, 22016), (11008, 4096), (4096, 32000)]
Call = Callable[[], Any]


def time_calls(day: Day, calls: Sequence[Call]) -> float:
    """Time [us] one of these calls, which read different memory: the median of rounds over all of them.

    On a GPU they are recorded as one graph, which excludes the host's time to launch them.
    """

    def work() -> None:
        for call in calls:
            call()

    replay: Call = work
    if day.device.type == "cuda":
        for call in calls[:2]:
            call()
        torch.cuda.synchronize(day.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        replay = graph.replay
    times = sorted([_time_once(day, replay) for _ in range(2 if day.rehearse else ROUNDS)][1:])
    return 1e6 * times[len(times) // 2] / len(calls)


def _time_once(day: Day, call: Call, unit_s: float = 1) -> float:
    clock = Clock(day.device)
    clock.start()
    call()
    return clock.elapsed() / unit_s


class Rows:
    """Queries of some rows over keys and values, several times over on different memory.

    query: (1, 32, rows, D). memory: (copies, 2, 1, heads, keys, D) keys and values. mask: (rows, keys) additive.
    """

    def __init__(self, day: Day, rows: int, keys: int, heads: int) -> None:
        options: Any = {"device": day.device, "dtype": day.dtype}
        self.count, self.keys, self.heads = rows, keys, heads
        self.nbytes = 2 * heads * keys * HEAD * day.dtype.itemsize
        self.query = torch.randn(1, HEADS, rows, HEAD, **options)
        self.memory = torch.randn(_copies(day, self.nbytes), 2, 1, heads, keys, HEAD, **options)
        self.mask = torch.zeros(rows, keys, **options)
        self.mask[:, -rows:] = torch.full((rows, rows), float("-inf")).triu(1).to(self.mask)

    def calls(self, masked: bool) -> list[Call]:
        """Return calls of torch's attention, with the kernel that is allowed."""
        mask = self.mask if masked else None
        attend = partial(scaled_dot_product_attention, attn_mask=mask, enable_gqa=self.heads != HEADS)
        return [partial(attend, self.query, *each) for each in self.memory]

    def engine_calls(self) -> list[Call]:
        """Return calls as the engine makes them: query heads that share keys are additional rows, with a mask."""
        groups = HEADS // self.heads
        packed = self.query.reshape(1, self.heads, groups * self.count, HEAD)
        attend = partial(scaled_dot_product_attention, attn_mask=self.mask.repeat(groups, 1))
        return [partial(attend, packed, *each) for each in self.memory]

    def tree_calls(self, day: Day, way: str) -> list[Call]:
        """Return calls of an attention that reads lengths and ancestors on the device. Raises InputError."""
        attend = find_attention(way, day.device, day.dtype, HEAD)
        assert attend is not None
        bits = torch.from_numpy(pack_bits(np.tri(self.count, dtype=bool))).to(day.device)
        depths = torch.arange(self.count, device=day.device)
        mask = TreeMask(attend, torch.tensor([self.keys - self.count], device=day.device), depths, bits, None)
        query = self.query[0].transpose(0, 1).contiguous()
        return [partial(attend, query, keys, values, mask) for keys, values in self.memory]


def _copies(day: Day, nbytes: int) -> int:
    """The number of copies of a memory that together exceed the caches."""
    return 2 if day.rehearse else max(2, -(-SPREAD // nbytes))


def plan_attention(day: Day) -> Iterator[Row]:
    """Time torch's kernels: the first call of a shape, which may plan, and later ones.

    Prompts of neighbouring lengths show the cost of a plan for an exact shape.
    """
    shapes = [(rows, keys, masked) for rows in (1, 8, 64, 96) for keys in (512, 2048) for masked in (False, True)]
    shapes += [(count, count, True) for count in (401, 402, 403)]
    for backend, (count, keys, masked) in product(BACKENDS, shapes[:3] if day.rehearse else shapes):
        calls = Rows(day, count, keys, HEADS).calls(masked)
        with sdpa_kernel(BACKENDS[backend]):
            first = day.attempt(partial(_time_once, day, calls[0], unit_s=1e-3))
            later = day.attempt(partial(time_calls, day, calls))
        shape = {"kernel": backend, "rows": count, "keys": keys, "mask": "yes" if masked else "no"}
        yield shape | {"first, ms": first, "later, us": later}


def compare_kernels(day: Day, way: str) -> Iterator[Row]:
    """Time an attention of a draft's rows [us], and compare it with reading keys and values once.

    way: of ``engine.attention``; SDPA: each of torch's kernels, and the call of the engine.
    """
    read_s = _seconds_a_byte(day)
    counts, lengths, heads = ((8,), (32,), (32, 8)) if day.rehearse else ((1, 8, 64, 96), (512, 2048, 8192), (32, 8))
    for count, keys, some in product(counts, lengths, heads):
        if way == FLEX and not day.rehearse and (keys, count) not in FLEX_SHAPES:
            continue
        rows = Rows(day, count, keys, some)
        row: dict[str, Any] = {"rows": count, "keys": keys, "key heads": some, "bound": 1e6 * rows.nbytes * read_s}
        if way == SDPA:
            for backend, allowed in BACKENDS.items():
                with sdpa_kernel(allowed):
                    row[backend] = day.attempt(partial(time_calls, day, rows.calls(count > 1)))
            row["the engine's call"] = day.attempt(partial(time_calls, day, rows.engine_calls()))
        else:
            row[way] = day.attempt(partial(time_calls, day, rows.tree_calls(day, way)))
        yield row


def multiply_few_rows(day: Day) -> Iterator[Row]:
    """Time matrix products at few rows [us], and compare them with reading the weight once."""
    read_s = _seconds_a_byte(day)
    for inner, outer in [(256, 704)] if day.rehearse else PRODUCTS:
        size = inner * outer * day.dtype.itemsize
        weights = torch.randn(_copies(day, size), outer, inner, device=day.device, dtype=day.dtype)
        for count in (1, 2, 4, 8, 16, 32, 64, 96):
            given = torch.randn(count, inner, device=day.device, dtype=day.dtype)
            took = day.attempt(partial(time_calls, day, [partial(linear, given, each) for each in weights]))
            over = took / (1e6 * size * read_s) if isinstance(took, float) else ""
            yield {"weight": f"{inner} x {outer}", "rows": count, "us": took, "over the bound": over}


def _seconds_a_byte(day: Day) -> float:
    return 1 / (measure_ceilings(day.device, day.dtype, day.buffer_bytes).read_gb_s * 1e9)


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
        batch.forward(handles, drafts)
        batch.settle().enter(found)
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
