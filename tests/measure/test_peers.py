"""Timing in pairs: the order of runs, when a difference is reported, and the command from arguments
to table.
"""

from __future__ import annotations

import re
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from builders.models import build
from scripts.lab.__main__ import main
from scripts.lab.peers import (
    FASTER,
    NONE,
    PAIRS,
    SLOWER,
    Timed,
    compare,
    time_pair,
)
from specbench.method import Peer
from specbench.models.eager.engine import EagerEngine

CPU = torch.device("cpu")


class Sleeper(Peer):
    """Emits a token an iteration, and writes its name on the wall."""

    def __init__(self, name: str, seen: list[str], pause_s: float = 0.0) -> None:
        self.name, self.seen, self.pause_s, self.fresh = name, seen, pause_s, False

    def reset(self) -> None:
        self.fresh = True

    def decode(self, prompt, limit, seed, emit) -> None:
        assert self.fresh, "not reset before the request"
        self.fresh = False
        self.seen.append(f"{self.name}{prompt[0]}")
        for token in range(limit):
            time.sleep(self.pause_s)
            emit([token + 10])


@pytest.fixture(scope="module")
def engine():
    return EagerEngine(build("llama"), 128, frozenset({2}), 8)


def test_a_round_is_a_b_b_a_and_the_next_one_b_a_a_b(engine):
    seen: list[str] = []
    found = time_pair(
        engine, CPU, [Sleeper("a", seen), Sleeper("b", seen, pause_s=2e-3)], [[3], [4, 4]], 2, 4
    )
    assert seen[:2] == ["a4", "b4"]  # warm-up, the longest prompt
    assert " ".join(seen[2:]) == "a3 b3 b3 a3 b3 a3 a3 b3 b4 a4 a4 b4 a4 b4 b4 a4"
    for side in found:
        assert side.wall_s.shape == side.cpu_s.shape == (2, 2, 2)
        assert side.ids == ((10, 11, 12, 13),) * 2
        assert side.mat == 1
    ours, peer = found
    assert (peer.wall_s >= 4 * 2e-3).all()
    assert 0 < ours.wall_s.min() < 4 * 2e-3
    assert peer.cpu_s.min() < 4e-3  # who sleeps does not work


def test_the_command_prints_a_table(capsys):
    pairs = [name for name in PAIRS if "vanilla" not in name]
    sizes = ("suite.first=8", "decode.max_new_tokens=2", "--blocks", "1")
    assert main(["peers", "engine=fast", *sizes, "--pairs", *pairs]) == 0
    about, _, *lines = capsys.readouterr().out.splitlines()
    assert "model=tiny engine=fast dtype=float32 tokens=2 prompts=8 blocks=1" in about
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    names = [pair.replace(":", ", ") for pair in pairs]
    assert [row[0] for row in rows] == [
        f"{name}: {clock}" for name in names for clock in ("cpu", "wall")
    ]
    assert [row[1] for row in rows] == ["8 of 8", ""] * len(pairs)
    for row in rows:
        value, low, high = map(float, re.findall(r"[\d.]+", row[3]))
        assert 0 < low <= value <= high  # an interval is as wide as the machine is busy
    assert all(row[-1] in (FASTER, SLOWER, NONE) for row in rows[1::2])


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("--pairs", "pld:hf_generate"), "pair=pld:hf_generate: expected one of"),
        (("method.pld.num_draft=5",), "method.hf_prompt_lookup.num_draft=10: expected 5"),
        (("suite.first=7",), "prompts=7, blocks=3: expected at least 8 and 1"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_exit_code_2(arguments, reported, capsys):
    assert main(["peers", *arguments]) == 2
    assert reported in capsys.readouterr().err


COUNT, ROUNDS, TOKENS = 12, 4, 20


def side(factor: float = 1.0, noise: float = 0.01, drift: float = 1.0, seed: int = 0) -> Timed:
    """Prompts of different lengths. noise: of each run, upwards. drift: of the second runs against
    the first.
    """
    random = np.random.default_rng(seed)
    base = np.linspace(0.1, 0.4, COUNT)[:, None, None] * factor

    def times():
        return base * (1 + noise * np.abs(random.normal(size=(COUNT, ROUNDS, 2)))) * [1, drift]

    return Timed(times(), times(), tuple((number,) * TOKENS for number in range(COUNT)), 1.0)


def test_a_slow_peer_is_found_and_swapped_the_verdict_is_inverse():
    one, other = side(), side(1.3, seed=1)
    (there, faster), (back, slower) = compare(one, other), compare(other, one)
    assert (faster, slower) == (FASTER, SLOWER)
    assert there["cpu"].value.value == pytest.approx(1.3, rel=0.01)
    for name in ("cpu", "wall"):
        assert there[name].value.value == pytest.approx(1 / back[name].value.value)
        assert there[name].value.low == pytest.approx(1 / back[name].value.high, rel=1e-3)
        assert there[name].spread == back[name].spread


def test_a_difference_inside_the_spread_of_either_side_is_refused():
    calm, shaken = side(1.05, seed=1), side(1.05, drift=1.08, seed=1)
    assert compare(side(), calm)[1] == FASTER
    ratios, verdict = compare(side(), shaken)
    assert ratios["cpu"].value.low > 1
    assert ratios["cpu"].spread > 1.07
    assert verdict == NONE
    for pair in ((shaken, side()), (side(drift=1.08), calm), (side(), side(seed=1))):
        assert compare(*pair)[1] == NONE


def test_an_interval_that_holds_one_or_clocks_that_disagree_show_nothing():
    slow = side(seed=1)
    factor = np.where(np.arange(COUNT) % 2, 1.7, 0.6)[:, None, None]
    ratios, verdict = compare(
        side(), replace(slow, wall_s=slow.wall_s * factor, cpu_s=slow.cpu_s * factor)
    )
    assert ratios["wall"].value.low < 1 < ratios["wall"].value.high
    assert ratios["wall"].value.value > ratios["wall"].spread
    assert verdict == NONE
    mixed = replace(side(1.3, seed=1), wall_s=side(0.7, seed=1).wall_s)
    assert compare(side(), mixed)[1] == NONE


def test_times_are_minima_or_medians_per_token():
    ours, peer = side(), side(2.0, seed=1)
    longer = replace(peer, ids=tuple(ids * 2 for ids in peer.ids))
    assert compare(ours, longer)[0]["cpu"].value.value == pytest.approx(1, rel=0.01)
    ours, peer = side(noise=0), side(noise=0)
    for times in (ours.cpu_s, ours.wall_s):
        times[:, 0] *= 10  # two runs of eight
    assert [ratio.value.value for ratio in compare(ours, peer)[0].values()] == pytest.approx([1, 1])
    for times in (ours.cpu_s, ours.wall_s):
        times[:, :3] = times[:, 3:] * 10  # six of eight
    assert [ratio.value.value for ratio in compare(ours, peer)[0].values()] == pytest.approx(
        [1, 0.1]
    )
