"""Draft lengths in engines' files: each file read by the rules of its engine's parser gives the
chosen lengths.
"""

from __future__ import annotations

import bisect
import json
import os
import re
import subprocess
from unittest import mock

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from runs.conftest import write_phrases

from builders.profiles import FIT
from specbench import commands
from specbench.advise import choose as room
from specbench.advise.choose import Advice, chain_length, make_schedule
from specbench.advise.schedule import ENGINES, MARK, Schedule, export_schedule
from specbench.input import InputError
from specbench.profile.file import write_profile
from specbench.stats import Estimate

FALLING = Schedule(
    "pld", {1: 5, 4: 5, 8: 3, 32: 0}, ("tiny on mini\nand a second line", "modelled on a card")
)
PAYING = Schedule("pld", {1: 4, 2: 2}, ())
RISING = Schedule("mtp", {1: 2, 8: 3, 16: 1}, ())


def last_up_to(lengths: dict[int, int], most: int) -> dict[int, int]:
    """Batch size -> the length of the largest key up to it."""
    keys = sorted(lengths)
    return {size: lengths[keys[bisect.bisect_right(keys, size) - 1]] for size in range(1, most + 1)}


def read_vllm(text: str, most: int) -> dict[int, int]:
    """vLLM 0.33.0, ``v1/spec_decode/dynamic/utils.py``: sorted ranges that do not overlap, the
    first from 1; a gap and the rest have the length before; no length above num_speculative_tokens.
    ``utils/argparse_utils.py`` makes JSON of the nested mapping of a yaml file.
    """
    config = json.loads(json.dumps(yaml.safe_load(text)["speculative-config"]))
    assert config.keys() <= {
        "method",
        "num_speculative_tokens",
        "num_speculative_tokens_per_batch_size",
    }
    assert config["num_speculative_tokens"] > 0
    ranges, end = config["num_speculative_tokens_per_batch_size"], 0
    assert ranges[0][0] == 1
    for first, last, length in ranges:
        assert end < first <= last
        assert length >= 0
        end = last
    lengths = last_up_to({first: length for first, _, length in ranges}, most)
    return {size: min(length, config["num_speculative_tokens"]) for size, length in lengths.items()}


def read_tensorrt_llm(text: str, most: int, later: bool) -> dict[int, int]:
    """TensorRT-LLM, ``llmapi/llm_args.py`` and ``_torch/speculative``: in 1.2 a length is valid
    from its key, later up to it, and 0 after the last one; the smallest key, in 1.2 a key of 1, has
    max_draft_len, and no other has more.
    """
    config = yaml.safe_load(text)["speculative_config"]
    table = dict(sorted(config["draft_len_schedule"].items()))
    assert all(type(size) is int and size >= 1 and length >= 0 for size, length in table.items())
    assert table[1] == config["max_draft_len"] == max(table.values())
    keys = list(table)
    if not later:
        return last_up_to(table, most)
    places = {size: bisect.bisect_left(keys, size) for size in range(1, most + 1)}
    return {size: table[keys[place]] if place < len(keys) else 0 for size, place in places.items()}


def read_sglang(text: str, most: int) -> dict[int, int]:
    """SGLang 0.5.23, ``srt/speculative/adaptive_spec_params.py``: keys of digits are slots,
    candidates are lists of ints from 0; a batch takes the largest slot up to its size.
    """
    slots = {}
    for key, entry in json.loads(text).items():
        if key.isdigit():
            (slots[int(key)],) = entry["candidate_steps"]
    assert all(isinstance(length, int) and length >= 0 for length in slots.values())
    return last_up_to(slots, most)


def read_llama_cpp(text: str) -> dict[int, int]:
    """llama.cpp of llama-cpp-python 0.3.36, ``common_speculative_n_max``: a kind reads its own flag
    of the length only, and ngram-simple and ngram-mod draft nothing that is shorter than another of
    their settings.
    """
    own = {"ngram-simple": ("ngram-simple-size-m", 48), "ngram-map-k": ("ngram-map-k-size-m", 48),
           "ngram-map-k4v": ("ngram-map-k4v-size-m", 48), "ngram-mod": ("ngram-mod-n-max", 64),
           "ngram-cache": ("", 8)}  # fmt: skip
    least = {"ngram-simple": ("ngram-simple-size-n", 12), "ngram-mod": ("ngram-mod-n-min", 48)}
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            words = line.split()
            flags = dict(zip(words[::2], words[1::2], strict=True))
            kind, drafting = flags.get("--spec-type", ""), len(flags) > 1
            name, default = own.get(kind, ("draft-n-max", 3))
            length = int(flags.get(f"--spec-{name}", default)) if drafting else 0
            name, default = least.get(kind, ("", 0))
            found[int(flags["--parallel"])] = (
                length if length >= int(flags.get(f"--spec-{name}", default)) else 0
            )
    return found


@given(
    st.dictionaries(st.integers(2, 300), st.integers(0, 20), max_size=8),
    st.integers(1, 20),
    st.sampled_from(["pld", "mtp", "ngram_map_k", "ngram_map_k4v", "ngram_mod", "a\nb: {"]),
)
def test_every_engine_reads_the_chosen_lengths(later, first, method):
    """The schedules may rise, except for TensorRT-LLM."""
    schedule = Schedule(
        method, dict(sorted({1: first, **later}.items())), ("origin: x # y\n  z: 1",)
    )
    last = max(schedule.lengths)
    want, beyond = (last_up_to(dict(schedule.lengths), most) for most in (last, last + 5))
    assert read_vllm(ENGINES["vllm"].write(schedule), last + 5) == beyond
    assert read_sglang(ENGINES["sglang"].write(schedule), last + 5) == beyond
    assert read_llama_cpp(ENGINES["llama_cpp"].write(schedule)) == schedule.lengths
    if schedule.longest > first:
        with pytest.raises(InputError, match="expected the longest draft at 1"):
            ENGINES["tensorrt_llm"].write(schedule)
        return
    for since in (False, True):
        read = read_tensorrt_llm(ENGINES["tensorrt_llm"].write(schedule), last + 5, since)
        assert read == want | dict.fromkeys(range(last + 1, last + 6), 0)


VLLM_READS = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup as build
parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
given = parser.parse_args(["--config", sys.argv[1]]).speculative_config
lengths, most = given["num_speculative_tokens_per_batch_size"], given["num_speculative_tokens"]
print(json.dumps([given["method"], build(lengths, int(sys.argv[2]), most)[1:]]))
"""


@pytest.mark.skipif("VLLM_PYTHON" not in os.environ, reason="VLLM_PYTHON names no Python with vLLM")
@pytest.mark.parametrize("schedule", [FALLING, PAYING, RISING], ids=["falling", "paying", "rising"])
def test_vllm_itself_reads_the_chosen_lengths(schedule, tmp_path):
    (path,) = export_schedule(schedule, ["vllm"], tmp_path)
    most = max(schedule.lengths) + 5
    command = [os.environ["VLLM_PYTHON"], "-c", VLLM_READS, str(path), str(most)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    method, lengths = json.loads(done.stdout.splitlines()[-1])
    assert method == {"pld": "ngram", "mtp": "mtp"}[schedule.method]
    assert lengths == list(last_up_to(dict(schedule.lengths), most).values())


@pytest.mark.skipif("LLAMA_SERVER" not in os.environ, reason="LLAMA_SERVER names no llama-server")
@pytest.mark.parametrize("method", ["pld", "ngram_map_k", "ngram_mod", "mtp"])
def test_llama_server_itself_takes_every_line(method, tmp_path):
    (path,) = export_schedule(Schedule(method, {1: 5, 8: 3, 32: 0}, ()), ["llama_cpp"], tmp_path)
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            # --version ends it once the flags are read
            for more, code in (("", 0), ("--spec-no-such-flag 1", 1)):
                command = [os.environ["LLAMA_SERVER"], *line.split(), *more.split(), "--version"]
                done = subprocess.run(command, capture_output=True, check=False, timeout=60)
                assert done.returncode == code


def test_files_as_they_are_written(tmp_path):
    paths = export_schedule(FALLING, ENGINES, tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in paths] == [
        "pld/vllm.yaml", "pld/tensorrt_llm.yaml", "pld/sglang.json", "pld/llama_server.txt",
    ]  # fmt: skip
    vllm, tensorrt, sglang, _ = (path.read_text() for path in paths)
    assert yaml.safe_load(vllm)["speculative-config"]["method"] == "ngram"
    assert yaml.safe_load(tensorrt)["speculative_config"]["decoding_type"] == "NGram"
    assert next(iter(json.loads(sglang))) == MARK
    assert export_schedule(PAYING, ["vllm"], tmp_path) == paths[:1]  # an earlier one of ours
    paths[0].write_text("speculative-config: {}")
    with pytest.raises(InputError, match="was not written by specbench"):
        export_schedule(FALLING, ["sglang", "vllm"], tmp_path)
    assert sglang == paths[2].read_text()


def test_a_look_up_of_llama_cpp_without_a_flag_of_the_length():
    def write(lengths):
        return ENGINES["llama_cpp"].write(Schedule("pld_llama_cache", lengths, ()))

    assert read_llama_cpp(write({1: 8, 8: 0})) == {1: 8, 8: 0}
    assert "drafts up to 8 tokens" in write({1: 8, 4: 6})
    with pytest.raises(InputError, match=r"at most 8, since .*pld_llama_cache.num_draft=8"):
        write({1: 16, 8: 8})


def test_every_line_of_llama_cpp_looks_up_the_same_n_grams():
    text = ENGINES["llama_cpp"].write(Schedule("pld", {1: 16, 8: 3}, ()))
    assert re.findall(r"size-n (\d+)", text) == ["3", "3"]


def candidate(name: str, length: int, chain: bool = True) -> mock.Mock:
    """A candidate whose steps propose drafts of this length."""
    depth = np.array([length, 0.0, length])
    found = mock.Mock(method=name)
    found.name = f"{name} [{length}]"
    fed = depth + 1 if chain else 2 * depth + 1
    found.entry.trials.of.return_value.turns.steps.read = lambda *_: iter([(fed, depth)])
    found.entry.facts.model, found.entry.facts.suite = "tiny", "mini"
    return found


def advise(
    best: mock.Mock, low: float = 1.2, ties: tuple[str, ...] = (), speedup: float = 1.5
) -> Advice:
    return Advice(1, best, Estimate(speedup, low, 1.8, 20), ties, "")


def test_a_length_rises_only_if_the_shorter_one_does_not_tie(monkeypatch):
    short, long = candidate("pld", 2), candidate("pld", 7)

    def lengths(*advice: Advice | None) -> dict[int, int]:
        loads = tuple(2**place for place in range(len(advice)))
        found = mock.Mock(side_effect=lambda own, profile, load: advice[loads.index(load)])
        monkeypatch.setattr(room, "choose", found)
        return dict(make_schedule([short, long], FIT, loads).lengths)

    assert lengths(advise(short), advise(long, ties=(short.name,))) == {1: 2, 2: 2}
    assert lengths(advise(short), advise(long)) == {1: 2, 2: 7}
    assert lengths(advise(long), advise(short), None) == {1: 7, 2: 2, 4: 0}
    assert lengths(None, advise(short)) == {1: 0, 2: 2}
    # it may be no faster
    assert lengths(advise(short), None, advise(short, low=0.9)) == {1: 2, 2: 0, 4: 0}
    # faster on the tuning half only
    assert lengths(advise(long), advise(short, low=0.8, speedup=0.98)) == {1: 7, 2: 0}
    for slower in (None, advise(short, speedup=1.0), advise(short, speedup=float("nan"))):
        with pytest.raises(InputError, match="faster than vanilla at no load"):
            lengths(None, slower)


def test_what_cannot_be_a_schedule_is_refused():
    chain, tree = candidate("pld", 2), candidate("eagle2", 6, chain=False)
    plain = candidate("sam", 0)
    assert [chain_length(each) for each in (chain, tree, plain)] == [2, None, None]
    for found, loads, method, text in (
        ([chain], (8,), "", "begins at batch size 1"),
        ([tree, plain], (1,), "", "expected one that drafts chains"),
        ([chain, tree], (1,), "eagle2", "no method with recorded chains"),
    ):
        with pytest.raises(InputError, match=text):
            make_schedule(found, FIT, loads, method)


@pytest.mark.parametrize("load", ["0", "1,,8"])
def test_loads_that_are_no_batch_sizes(load, tmp_path, capsys):
    with pytest.raises(SystemExit):
        commands.main(["choose", str(tmp_path), "--load", load, "--export", "vllm"])
    assert "expected whole numbers from 1 to 999999" in capsys.readouterr().err
    assert commands.main(["choose", str(tmp_path), "--method", "pld"]) == 2
    assert "expected --export ENGINE" in capsys.readouterr().err


def test_the_command_writes_the_curve_that_it_prints(tmp_path, capsys, steady_time):
    """pld at two lengths on a server whose tokens cost: a longer draft at one request, none at
    many.
    """
    trace = write_phrases(tmp_path, 2, ("the red boat waits", "seven grey geese"))
    profile = write_profile(FIT, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "POINTS", {"pld": {"num_draft": (1, 6)}})
        patch.setattr(room, "FIXED", ("measure=replay", "measure.warmup=0"))
        given = [str(trace), "model.tokenizer=bundled:tiny", "model.template=raw"]
        given += ["--profile", str(profile), "--load", "1,4096", "--output", str(tmp_path)]
        export = [word for name in ENGINES for word in ("--export", name)]
        assert commands.main(["choose", *given, *export]) == 0
    out, err = capsys.readouterr()
    assert "warning: the length changes from 6 to 0 tokens between 1 and 4096 requests" in err
    config = yaml.safe_load((tmp_path / "pld/vllm.yaml").read_text())["speculative-config"]
    (_, _, length), (_, _, none) = config["num_speculative_tokens_per_batch_size"]
    assert (length, none) == (6, 0)
    assert "1 at once: pld [num_draft=6]" in out
    for engine in ENGINES.values():
        assert "not modelled" in (tmp_path / "pld" / engine.file).read_text()
    assert "4096 at once: none is faster than vanilla" in out
