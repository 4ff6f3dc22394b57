"""When a difference to a peer is called one: beyond the A/A spread, by both clocks, over enough prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scripts.lab.peers import FASTER, NONE, SLOWER, Timed, compare, print_peers

PROMPTS, ROUNDS, TOKENS = 12, 4, 20


def side(name: str, factor: float = 1.0, noise: float = 0.01, drift: float = 1.0, seed: int = 0) -> Timed:
    """Prompts of different lengths. noise: of each run, upwards. drift: of the second runs against the first."""
    random = np.random.default_rng(seed)
    base = np.linspace(0.1, 0.4, PROMPTS)[:, None, None] * factor

    def times():
        runs = base * (1 + noise * np.abs(random.normal(size=(PROMPTS, ROUNDS, 2))))
        runs[..., 1] *= drift
        return runs

    ids = tuple((number,) * TOKENS for number in range(PROMPTS))
    return Timed(name, times(), times(), np.full(PROMPTS, float(TOKENS)), ids, 1.0)


def test_a_slow_peer_is_found_and_swapped_the_verdict_is_inverse():
    found = compare(side("vanilla"), side("hf", 1.3, seed=1))
    assert found.verdict == FASTER
    assert found.ratios["cpu"].value.value == pytest.approx(1.3, rel=0.01)
    one, other = side("vanilla"), side("hf", 1.3, seed=1)
    there, back = compare(one, other), compare(other, one)
    assert (there.verdict, back.verdict) == (FASTER, SLOWER)
    for name in ("cpu", "wall"):
        assert there.ratios[name].value.value == pytest.approx(1 / back.ratios[name].value.value)
        assert there.ratios[name].value.low == pytest.approx(1 / back.ratios[name].value.high, rel=1e-3)
        assert there.ratios[name].spread == back.ratios[name].spread


def test_a_difference_inside_the_spread_of_either_side_is_refused():
    calm, shaken = side("hf", 1.05, seed=1), side("hf", 1.05, drift=1.08, seed=1)
    assert compare(side("vanilla"), calm).verdict == FASTER
    found = compare(side("vanilla"), shaken)
    assert found.ratios["cpu"].value.low > 1
    assert found.ratios["cpu"].spread > 1.07
    assert found.verdict == NONE
    assert compare(shaken, side("vanilla")).verdict == NONE
    assert compare(side("vanilla", drift=1.08), side("hf", 1.05, seed=1)).verdict == NONE
    assert compare(side("vanilla"), side("vanilla", seed=1)).verdict == NONE


def test_an_interval_that_holds_one_or_clocks_that_disagree_show_nothing():
    slow = side("hf", seed=1)
    factor = np.where(np.arange(PROMPTS) % 2, 1.7, 0.6)[:, None, None]
    mixed = replace(slow, wall_s=slow.wall_s * factor, cpu_s=slow.cpu_s * factor)
    found = compare(side("vanilla"), mixed)
    assert found.ratios["wall"].value.low < 1 < found.ratios["wall"].value.high
    assert found.ratios["wall"].value.value > found.ratios["wall"].spread
    assert found.verdict == NONE
    slow, quick = side("hf", 1.3, seed=1), side("hf", 0.7, seed=1)
    mixed = replace(slow, wall_s=quick.wall_s)
    assert compare(side("vanilla"), mixed).verdict == NONE
    assert compare(side("vanilla"), mixed, cpu=False).verdict == SLOWER
    assert set(compare(side("vanilla"), mixed, cpu=False).ratios) == {"wall"}


def test_few_prompts_have_no_interval_and_no_verdict():
    def few(timed: Timed) -> Timed:
        cut = {name: getattr(timed, name)[:5] for name in ("wall_s", "cpu_s", "tokens", "ids")}
        return replace(timed, **cut)

    found = compare(few(side("vanilla")), few(side("hf", 2.0)))
    assert found.ratios["cpu"].value.value == pytest.approx(2, rel=0.01)
    assert found.verdict == NONE


def test_times_are_minima_or_medians_per_token():
    ours, peer = side("vanilla"), side("hf", 2.0, seed=1)
    longer = tuple(ids * 2 if number < 3 else ids for number, ids in enumerate(peer.ids))
    found = compare(ours, replace(peer, tokens=np.array([len(ids) for ids in longer], float), ids=longer))
    assert (found.equal, found.prompts) == (PROMPTS - 3, PROMPTS)
    assert found.ratios["cpu"].value.value == pytest.approx(2 * PROMPTS / (PROMPTS + 3), rel=0.01)
    ours, peer = side("vanilla", noise=0), side("hf", noise=0)
    for times in (ours.cpu_s, ours.wall_s):
        times[:, 0] *= 10  # two runs of eight
    found = compare(ours, peer)
    assert found.ratios["cpu"].value.value == found.ratios["wall"].value.value == pytest.approx(1)
    for times in (ours.cpu_s, ours.wall_s):
        times[:, :3] = times[:, 3:] * 10  # six of eight
    found = compare(ours, peer)
    assert found.ratios["cpu"].value.value == pytest.approx(1)
    assert found.ratios["wall"].value.value == pytest.approx(0.1)


def test_the_table_has_a_row_a_measure_and_the_verdict_once(capsys):
    print_peers([compare(side("vanilla"), side("hf_generate", 1.3, seed=1))])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| vanilla, hf_generate: cpu | 12 of 12 | 1.00 / 1.00 | 1.3")
    assert lines[2].endswith("|  |")
    assert lines[3].endswith(f"| {FASTER} |")
