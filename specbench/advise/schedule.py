"""Draft lengths by batch size in the files that serving engines read; ``choose`` makes them. It
needs no torch.

An engine drafts with one method, so a schedule has one method, with the best of its recorded
lengths at each load. All engines of ``ENGINES`` draft chains of a set length. A length is valid
from its batch size to below the next one, though batch sizes between two loads are not modelled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from specbench.input import InputError, refuse_foreign
from specbench.names import comment, file_name
from specbench.records.store import write_atomically

MARK = "specbench choose"  # in every file, by which a later export knows it


@dataclass(frozen=True, slots=True)
class Schedule:
    """The draft lengths of a method. lengths: batch size -> [tokens], 0 = no draft; from 1,
    ascending.

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
        """(first batch size, last one, length) of each length; the last range ends at the largest
        load.
        """
        starts = list(self.changes)
        ends = [start - 1 for start in starts[1:]] + [max(self.lengths)]
        return [(start, end, self.changes[start]) for start, end in zip(starts, ends, strict=True)]

    @property
    def changes(self) -> dict[int, int]:
        """The lengths without those that repeat the one before."""
        first = next(iter(self.lengths.items()))
        return dict(
            [
                first,
                *(
                    later
                    for before, later in pairwise(self.lengths.items())
                    if before[1] != later[1]
                ),
            ]
        )

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Neighbouring loads more than a factor of 2 apart whose lengths differ: somewhere between,
        one is wrong.
        """
        between = pairwise(self.lengths)
        return [
            (low, high)
            for low, high in between
            if high > 2 * low and self.lengths[low] != self.lengths[high]
        ]


def export_schedule(schedule: Schedule, engines: Sequence[str], output: Path) -> list[Path]:
    """Writes ``<method>/<file>`` for each of these ``ENGINES``. Raises InputError before anything
    is written.
    """
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
    """file: its name. start: how the engine reads it. write: its text. Raises InputError if it
    cannot express it.
    """

    file: str
    start: str
    write: Callable[[Schedule], str]


def _comments(schedule: Schedule, use: str) -> str:
    return comment((f"{MARK} wrote this for {schedule.method}", *schedule.origin, use))


# Our methods as the engines name theirs; '' = the engine has none with this name, and the user adds
# the key.
_VLLM = {
    "pld": "ngram", "pld_vllm": "ngram", "speculative_sampling": "draft_model", "eagle": "eagle",
    "eagle3": "eagle3", "mtp": "mtp", "dflash": "dflash", "suffix_decoding": "suffix",
    "suffix_decoding_local": "suffix",
}  # fmt: skip
_TENSORRT_LLM = {
    "pld": "NGram", "pld_vllm": "NGram", "speculative_sampling": "Draft_Target", "eagle3": "Eagle3",
    "mtp": "MTP",
}  # fmt: skip
_LLAMA_CPP = {
    "pld": "ngram-simple", "pld_llama_simple": "ngram-simple", "pld_llama_cache": "ngram-cache",
    "speculative_sampling": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp",
    "dflash": "draft-dflash", "ngram_map_k": "ngram-map-k", "ngram_map_k4v": "ngram-map-k4v",
    "ngram_mod": "ngram-mod",
}  # fmt: skip
# Kinds of llama.cpp that ignore --spec-draft-n-max: flag of the length, of a setting that a draft
# must reach, and that setting's default.
_LLAMA_CPP_FLAGS = {
    "ngram-simple": ("--spec-ngram-simple-size-m", "--spec-ngram-simple-size-n", 12),
    "ngram-map-k": ("--spec-ngram-map-k-size-m", "", 0),
    "ngram-map-k4v": ("--spec-ngram-map-k4v-size-m", "", 0),
    "ngram-mod": ("--spec-ngram-mod-n-max", "--spec-ngram-mod-n-min", 48),
}
NGRAM_CACHE = 8  # [tokens] of a draft of llama.cpp's ngram-cache, which has no flag of the length


def _section(title: str, key: str, name: str | None, **entries: object) -> str:
    """A section of YAML whose first entry names the method. name: as the engine names it."""
    named = f"  {key}: {name}\n" if name else f"  # {key}: add the engine's name of the method\n"
    return f"{title}:\n{named}" + "".join(
        f"  {entry}: {value}\n" for entry, value in entries.items()
    )


def write_vllm(schedule: Schedule) -> str:
    """VLLM 0.33, ``config/speculative.py``: inclusive ranges from 1; after the last one its length
    stays.
    """
    use = (
        "vllm serve MODEL --config FILE; draft models also need `model`, n-grams prompt_lookup_max"
    )
    return _comments(schedule, use) + _section(
        "speculative-config",
        "method",
        _VLLM.get(schedule.method),
        num_speculative_tokens=schedule.longest,
        num_speculative_tokens_per_batch_size=json.dumps([list(each) for each in schedule.ranges]),
    )


def write_tensorrt_llm(schedule: Schedule) -> str:
    """TensorRT-LLM, ``llmapi/llm_args.py``: the first length must be ``max_draft_len``.

    Up to 1.2 a key is the first batch size of its length, in later versions the last one, and
    nothing is drafted after the last key. With both ends of each range as keys, and 0 after the
    last one, a file means the same in both.

    Raises:
        InputError: A longer draft than that of batch size 1.
    """
    if schedule.lengths[1] != schedule.longest:
        raise InputError(
            f"tensorrt_llm: {schedule.method} drafts {schedule.lengths[1]} tokens at batch size 1"
            f" and up to {schedule.longest} at larger ones; expected the longest draft at 1, as"
            " draft_len_schedule requires: leave out --export tensorrt_llm, or the longer settings"
        )
    keys = {size: length for start, end, length in schedule.ranges for size in (start, end)}
    keys |= {max(keys) + 1: 0} if keys[max(keys)] else {}
    use = (
        "trtllm-serve MODEL --extra_llm_api_options FILE; draft models also need speculative_model"
    )
    return _comments(schedule, use) + _section(
        "speculative_config",
        "decoding_type",
        _TENSORRT_LLM.get(schedule.method),
        max_draft_len=schedule.longest,
        draft_len_schedule=keys,
    )


def write_sglang(schedule: Schedule) -> str:
    """SGLang 0.5.23, ``srt/speculative/adaptive_spec_params.py``: a slot begins at its key; other
    keys are ignored.

    One candidate in a slot leaves its controller no choice.
    """
    lengths = {
        str(size): {"candidate_steps": [length]} for size, length in schedule.changes.items()
    }
    padded = (
        "a batch is padded to the next CUDA-graph size first: sizes between two of those have the"
        " larger one's length"
    )
    return (
        json.dumps(
            {MARK: [f"for {schedule.method}", *schedule.origin, padded], **lengths}, indent=1
        )
        + "\n"
    )


def write_llama_cpp(schedule: Schedule) -> str:
    """llama.cpp, ``common/arg.cpp``: it has no schedule, so one line of flags for each number of
    slots.

    The setting that a draft must reach is the same in every line, since the look-up of
    ``ngram-simple`` uses it too.

    Raises:
        InputError: A length of ``ngram-cache`` above the engine's own.
    """
    kind = _LLAMA_CPP.get(schedule.method)
    if kind == "ngram-cache" and (longest := max(schedule.lengths.values())) > NGRAM_CACHE:
        raise InputError(
            f"llama_cpp: {schedule.method} drafts {longest} tokens; expected at most {NGRAM_CACHE},"
            " since ngram-cache has no flag of the length: leave out --export llama_cpp, or run"
            f" method.{schedule.method}.num_draft={NGRAM_CACHE}"
        )
    flag, reached, least = _LLAMA_CPP_FLAGS.get(kind or "", ("--spec-draft-n-max", "", 0))
    shortest = min(filter(None, schedule.lengths.values()), default=least)
    lines = []
    for size, length in schedule.lengths.items():
        words = [f"--parallel {size}"]
        if length:
            words += [f"--spec-type {kind}"] if kind else []
            words += [f"{flag} {length}"] if kind != "ngram-cache" else []
            words += [f"{reached} {shortest}"] if shortest < least else []
        lines.append(" ".join(words) + "\n")
    use = (
        "llama-server -m FILE.gguf and the line of your number of slots; draft models also need"
        " --model-draft"
    )
    if kind == "ngram-cache":
        use += f"; the engine drafts up to {NGRAM_CACHE} tokens in every line that drafts"
    return _comments(schedule, use) + "".join(lines)


ENGINES = {
    "vllm": Engine("vllm.yaml", "vllm serve MODEL --config FILE", write_vllm),
    "tensorrt_llm": Engine(
        "tensorrt_llm.yaml", "trtllm-serve MODEL --extra_llm_api_options FILE", write_tensorrt_llm
    ),
    "sglang": Engine(
        "sglang.json",
        "--speculative-adaptive --speculative-adaptive-config FILE; EAGLE and EAGLE3 only",
        write_sglang,
    ),
    "llama_cpp": Engine("llama_server.txt", "llama-server and one line of FILE", write_llama_cpp),
}
