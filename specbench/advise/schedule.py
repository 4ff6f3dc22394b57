"""Draft lengths by batch size, chosen from modelled speedups, in the files that serving engines read.

An engine drafts with one method, so a schedule has one method, with the best of its recorded lengths at each load.
All engines of ``ENGINES`` draft chains of a set length. A length is valid from its batch size to below the next one,
though batch sizes between two loads are not modelled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from specbench.advise.choose import Advice, Candidate, choose
from specbench.advise.tune import spell
from specbench.input import InputError, refuse_foreign
from specbench.names import file_name, near
from specbench.profile import Profile
from specbench.records.store import write_atomically

MARK = "specbench choose"  # in every file, by which a later export knows it


@dataclass(frozen=True, slots=True)
class Schedule:
    """The draft lengths of a method. lengths: batch size -> [tokens], 0 = no draft; from 1, ascending.

    origin: lines that state where the lengths come from.
    """

    method: str
    lengths: Mapping[int, int]
    origin: tuple[str, ...]

    @property
    def longest(self) -> int:
        """[tokens] The longest draft."""
        return max(self.lengths.values())

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """(first batch size, last one, length) of each length; the last range ends at the largest load."""
        starts = list(self.changes)
        ends = [start - 1 for start in starts[1:]] + [max(self.lengths)]
        return [(start, end, self.changes[start]) for start, end in zip(starts, ends, strict=True)]

    @property
    def changes(self) -> dict[int, int]:
        """The lengths without those that repeat the one before."""
        first = next(iter(self.lengths.items()))
        return dict([first, *(later for before, later in pairwise(self.lengths.items()) if before[1] != later[1])])

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Neighbouring loads more than a factor of 2 apart whose lengths differ: somewhere between, one is wrong."""
        between = pairwise(self.lengths)
        return [(low, high) for low, high in between if high > 2 * low and self.lengths[low] != self.lengths[high]]


def chain_length(candidate: Candidate) -> int | None:
    """[tokens] The longest recorded draft; None if a draft was no chain, or none was proposed."""
    longest = 0
    for fed, depth in candidate.entry.trials.of(candidate.method).turns.steps.read("fed", "depth"):
        if (fed != depth + 1).any():
            return None
        longest = max(longest, int(depth.max(initial=0)))
    return longest or None


def make_schedule(found: Sequence[Candidate], profile: Profile, loads: Sequence[int], method: str = "") -> Schedule:
    """Returns the best length of one method at each load, as ``choose`` finds it; 0 if its own speedup is not above 1.

    A length that rises with the load although the shorter one ties with it stays.

    Args:
        found: Candidates; those whose drafts are no chains are left out.
        profile: The cost of a forward.
        loads: Concurrent requests, ascending.
        method: Its name; '' for that of the best candidate at the smallest load at which drafting pays.

    Raises:
        InputError: No load of 1, no such method, no chain, or a method that is faster than vanilla at no load.
    """
    if loads[0] != 1:
        raise InputError(
            f"--load {','.join(map(str, loads))}: a schedule begins at batch size 1; expected --load 1,..."
        )
    lengths = {id(each): length for each in found if (length := chain_length(each))}
    chains = [each for each in found if id(each) in lengths]
    if not chains:
        raise InputError("--export: the methods of these runs draft trees or nothing; expected one that drafts chains")
    names = dict.fromkeys(each.method for each in chains)
    if method and method not in names:
        raise InputError(f"--method {method}: no method with recorded chains; {near(method, [*names])}")
    method = method or next((best.best.method for load in loads if (best := _paying(chains, profile, load))), "")
    own = [each for each in chains if each.method == method]
    chosen: dict[int, int] = {}
    facts = own[0].entry.facts if own else chains[0].entry.facts
    origin = [f"{facts.model} on {facts.suite}", f"modelled on {profile.label}"]
    before: float = math.inf
    for load in loads if own else ():
        best = _paying(own, profile, load)
        length = lengths[id(best.best)] if best else 0
        if best and length > before:
            tied = [lengths[id(each)] for each in own if each.name in best.ties]
            tied += [0] if best.speedup.low is not None and best.speedup.low <= 1 else []
            length = max((each for each in tied if each <= before), default=length)
        chosen[load] = before = length
        reason = f"the best is {best.best.name}, {spell(best.speedup)} times vanilla" if best else "none pays"
        origin.append(f"{load} requests: {length} tokens; {reason}")
    origin.append("batch sizes between these are not modelled and have the length of the one below; list more loads")
    if not any(chosen.values()):
        raise InputError(f"--export: {method or 'no method'} is faster than vanilla at no load; decode without a draft")
    return Schedule(method, chosen, tuple(origin))


def _paying(found: Sequence[Candidate], profile: Profile, load: int) -> Advice | None:
    """The best, if it is faster than vanilla also on the cases that did not take part in the choice."""
    best = choose(found, profile, load)
    return best if best and best.speedup.value > 1 else None


def export_schedule(schedule: Schedule, engines: Sequence[str], output: Path) -> list[Path]:
    """Writes ``<method>/<file>`` for each of these ``ENGINES``. Raises InputError before anything is written."""
    folder = output / file_name(schedule.method)
    texts = {folder / ENGINES[name].file: ENGINES[name].write(schedule) for name in engines}
    for path in texts:
        refuse_foreign(path, MARK.encode(), "move it, or give --output DIR")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_atomically(path, text)
    return list(texts)


@dataclass(frozen=True, slots=True)
class Engine:
    """file: its name. start: how the engine reads it. write: its text. Raises InputError if it cannot express it."""

    file: str
    start: str
    write: Callable[[Schedule], str]


def _comments(schedule: Schedule, use: str) -> str:
    lines = (f"{MARK} wrote this for {schedule.method}", *schedule.origin, use)
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


# Our methods as the engines name theirs; '' = the engine has none with this name, and the user adds the key.
_VLLM = {
    "pld": "ngram", "pld_vllm": "ngram", "speculative_sampling": "draft_model", "eagle": "eagle", "eagle3": "eagle3",
    "mtp": "mtp", "dflash": "dflash", "suffix_decoding": "suffix", "suffix_decoding_local": "suffix",
}  # fmt: skip
_TENSORRT_LLM = {
    "pld": "NGram", "pld_vllm": "NGram", "speculative_sampling": "Draft_Target", "eagle3": "Eagle3", "mtp": "MTP",
}  # fmt: skip
_LLAMA_CPP = {
    "pld": "ngram-simple", "pld_llama_simple": "ngram-simple", "pld_llama_cache": "ngram-cache",
    "speculative_sampling": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp", "dflash": "draft-dflash",
    "ngram_map_k": "ngram-map-k", "ngram_map_k4v": "ngram-map-k4v", "ngram_mod": "ngram-mod",
}  # fmt: skip


def _named(key: str, name: str | None) -> str:
    return f"  {key}: {name}\n" if name else f"  # {key}: add the engine's name of the method\n"


def write_vllm(schedule: Schedule) -> str:
    """VLLM 0.33, ``config/speculative.py``: inclusive ranges from 1; after the last one its length stays."""
    ranges = json.dumps([list(each) for each in schedule.ranges])
    use = "vllm serve MODEL --config FILE; draft models also need `model`, n-grams prompt_lookup_max"
    return (
        f"{_comments(schedule, use)}speculative-config:\n"
        + _named("method", _VLLM.get(schedule.method))
        + f"  num_speculative_tokens: {schedule.longest}\n  num_speculative_tokens_per_batch_size: {ranges}\n"
    )


def write_tensorrt_llm(schedule: Schedule) -> str:
    """TensorRT-LLM, ``llmapi/llm_args.py``: the first length must be ``max_draft_len``.

    Up to 1.2 a key is the first batch size of its length, in later versions the last one, and nothing is drafted after
    the last key. With both ends of each range as keys, and 0 after the last one, a file means the same in both.

    Raises:
        InputError: A longer draft than that of batch size 1.
    """
    if schedule.lengths[1] != schedule.longest:
        raise InputError(
            f"tensorrt_llm: {schedule.method} drafts {schedule.lengths[1]} tokens at batch size 1 and up to"
            f" {schedule.longest} at larger ones; expected the longest draft at 1, as draft_len_schedule requires:"
            " leave out --export tensorrt_llm, or the longer settings"
        )
    keys = {size: length for start, end, length in schedule.ranges for size in (start, end)}
    keys |= {max(keys) + 1: 0} if keys[max(keys)] else {}
    spelled = ", ".join(f"{size}: {length}" for size, length in keys.items())
    use = "trtllm-serve MODEL --extra_llm_api_options FILE; draft models also need speculative_model"
    return (
        f"{_comments(schedule, use)}speculative_config:\n"
        + _named("decoding_type", _TENSORRT_LLM.get(schedule.method))
        + f"  max_draft_len: {schedule.longest}\n  draft_len_schedule: {{{spelled}}}\n"
    )


def write_sglang(schedule: Schedule) -> str:
    """SGLang 0.5.23, ``srt/speculative/adaptive_spec_params.py``: a slot begins at its key; other keys are ignored.

    One candidate in a slot leaves its controller no choice.
    """
    lengths = {str(size): {"candidate_steps": [length]} for size, length in schedule.changes.items()}
    padded = (
        "a batch is padded to the next CUDA-graph size first: sizes between two of those have the larger one's length"
    )
    return json.dumps({MARK: [f"for {schedule.method}", *schedule.origin, padded], **lengths}, indent=1) + "\n"


def write_llama_cpp(schedule: Schedule) -> str:
    """llama.cpp, ``common/arg.cpp``: it has no schedule, so one line of flags for each number of slots."""
    kind = _LLAMA_CPP.get(schedule.method)
    drafting = f" --spec-type {kind}" if kind else ""
    lines = (
        f"--parallel {size}" + (f"{drafting} --spec-draft-n-max {length}" if length else "") + "\n"
        for size, length in schedule.lengths.items()
    )
    use = "llama-server -m FILE.gguf and the line of your number of slots; draft models also need --model-draft"
    return _comments(schedule, use) + "".join(lines)


ENGINES = {
    "vllm": Engine("vllm.yaml", "vllm serve MODEL --config FILE", write_vllm),
    "tensorrt_llm": Engine("tensorrt_llm.yaml", "trtllm-serve MODEL --extra_llm_api_options FILE", write_tensorrt_llm),
    "sglang": Engine(
        "sglang.json", "--speculative-adaptive --speculative-adaptive-config FILE; EAGLE and EAGLE3 only", write_sglang
    ),
    "llama_cpp": Engine("llama_server.txt", "llama-server and one line of FILE", write_llama_cpp),
}
