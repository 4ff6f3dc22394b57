"""The bundled suite for real models: its form, and its references, which are computed here."""

from collections import Counter
from itertools import combinations, permutations
from pathlib import Path

from tokenizers import Tokenizer

from builders.suites import suite_with
from specbench.records.answers import MT_BENCH
from specbench.suite.number import is_right

ASSETS = Path(__file__).resolve().parents[2] / "specbench" / "assets"
SINGLE = ("translation", "summarization", "qa", "math_reasoning", "rag")
IN_FILE = suite_with("starter", limit=None).cases
CASES = sorted(
    IN_FILE, key=lambda case: (*MT_BENCH, *SINGLE).index(case.subcategory or case.category)
)
TRAINS = (  # from, departs, to, arrives; minutes after eight
    ("Marl", 5, "Kessen", 31), ("Marl", 35, "Kessen", 61), ("Marl", 10, "Tolk", 52),
    ("Marl", 50, "Tolk", 92), ("Kessen", 33, "Ostow", 74), ("Kessen", 68, "Ostow", 109),
    ("Tolk", 58, "Ostow", 100), ("Tolk", 104, "Ostow", 146),
)  # fmt: skip


def _offices(clue):
    """The only order of Ana, Bo, Cem, Dora and Eli that has the common clues and this one."""
    [found] = [
        (ana, bo, cem, dora, eli)
        for ana, bo, cem, dora, eli in permutations(range(1, 6))
        if abs(ana - bo) == 1 and cem not in (1, 5) and abs(eli - ana) == 3 and ana < cem
        if clue(cem, dora, eli)
    ]
    return found


def _shortest(trains):
    """The shortest journey with at least five minutes to change."""
    return min(
        second[3] - first[1]
        for first, second in permutations(trains, 2)
        if first[2] == second[0] and second[1] - first[3] >= 5
    )


def _who_ate(true):
    """The children who can have eaten the cake if this number of statements is true."""
    return [eater for eater in ("Finn", "Greta", "Hugo", "Ines") if _count_true(eater) == true]


def _count_true(eater):
    return sum((eater == "Greta", eater == "Ines", eater != "Hugo", eater != "Ines"))


def _solve():
    """The answer to each turn of the cases with references, by category."""
    yield _offices(lambda cem, dora, eli: dora > eli)[1]
    yield _offices(lambda cem, dora, eli: abs(dora - cem) == 1 and dora % 2)[0]
    yield _shortest(TRAINS)
    yield _shortest(TRAINS[:1] + TRAINS[2:])
    assert _who_ate(1) == ["Hugo"]
    yield _count_true("Finn")
    yield len(_who_ate(3))
    yield sum(
        first % 2 == 0 and last % 2 and second > third
        for first, second, third, last in permutations(range(1, 9), 4)
    )
    yield sum(1 in code and sum(code) % 2 == 0 for code in combinations(range(1, 8), 4))
    yield (24 + 4) * (15 + 4) - 24 * 15 + 2 * 15
    bags = 2 * 15 * 4 * 10 // 30  # a square metre of 1 cm is 10 litres
    yield next(paid for paid in range(bags + 1) if paid + paid // 3 >= bags)
    found = [n for n in range(5000) if (n % 7, n % 9, n % 11) == (3, 4, 5)]
    yield from (found[0], len(found))
    terms = [2]
    while terms[-1] <= 500_000:
        terms.append(3 * terms[-1] - 1)
    yield from (terms[7], len(terms))
    [rolls] = [3 * small + 4.5 * (58 - small) for small in range(59) if 580 - 4 * small == 460]
    yield rolls
    saved = 320 + 10 * (45 - 10)
    yield saved + (1250 - saved) / 2 + 2 * 45
    yield 3 * 27 + (27 - 5) + 4 * 2 - 9 * 8
    yield 18 - 24 / 1.5 * 0.5


def test_the_references_are_the_computed_numbers():
    numbered = [case for case in CASES if case.references]
    assert Counter(case.subcategory or case.category for case in numbered) == {
        "reasoning": 3,
        "math": 4,
        "math_reasoning": 4,
    }
    assert all(len(case.references) == len(case.turns) for case in numbered)
    given = [int(number) for case in numbered for number in case.references]
    assert given == list(_solve())
    for case in numbered:
        last = int(case.references[-1])
        assert (is_right(case, f"So it is {last}."), is_right(case, str(last + 1))) == (True, False)


def test_it_has_four_different_prompts_of_each_category_in_turn():
    """So that a small limit has prompts of several categories of one task."""
    categories = [case.subcategory or case.category for case in CASES]
    assert [case.subcategory or case.category for case in IN_FILE] == [*MT_BENCH, *SINGLE] * 4
    assert [case.id for case in IN_FILE] == [str(number) for number in range(1, 53)]
    for case, category in zip(CASES, categories, strict=True):
        assert len(case.turns) == (2 if category in MT_BENCH else 1)
    turns = [turn for case in CASES for turn in case.turns]
    mini = {turn for case in suite_with("mini").cases for turn in case.turns}
    assert len({*turns} - mini) == len(turns)
    assert all(turn == turn.strip() for turn in turns)


def _count_tokens(count):
    return [sum(count(turn) for turn in case.turns) for case in CASES]


def test_lengths_spread_by_the_bundled_tokenizer():
    tokenizer = Tokenizer.from_file(str(ASSETS / "tiny" / "tokenizer.json"))
    lengths = _count_tokens(lambda turn: len(tokenizer.encode(turn).ids))
    # its vocabulary of 2,048 needs up to 1.6 times the tokens of one of 32,000
    assert 50 <= min(lengths) < 100
    assert 1300 < max(lengths) <= 1.6 * 1300


def test_lengths_are_50_to_1300_tokens_of_vicuna(vicuna):
    lengths = _count_tokens(lambda turn: len(vicuna.encode(turn, add_special_tokens=False)))
    assert 50 <= min(lengths) < 100 < 1000 < max(lengths) <= 1300
