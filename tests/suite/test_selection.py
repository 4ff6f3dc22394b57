"""Selection: what each key keeps, that keys compose in their stated order, and what the errors say."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.suite.selection import Selection, select
from specbench.types import Case, InputError

RAW_OF = {"multi-turn": ("writing", "math", "coding"), "qa": ("qa",), "rag": ("rag",)}


def make_case(number: int, category: str, raw: str) -> Case:
    return Case(id=str(number), category=category, turns=(f"question {number}",), subcategory=raw)


TASKS = ["multi-turn"] * 3 + ["qa"] * 3 + ["rag"]
RAW = ("writing", "math", "math", "qa", "qa", "qa", "rag")
SUITE = [make_case(number, *names) for number, names in enumerate(zip(TASKS, RAW, strict=True), start=1)]


def ids(cases: list[Case]) -> str:
    return "".join(case.id for case in cases)


@pytest.mark.parametrize(
    ("selection", "kept"),
    [
        (Selection(), "1234567"),
        (Selection(categories=("qa",)), "456"),
        (Selection(categories=("multi-turn",)), "123"),
        (Selection(categories=("math",)), "23"),
        (Selection(categories=("rag", "writing")), "17"),
        (Selection(categories="qa"), "456"),
        (Selection(ids=("7", "2")), "27"),
        (Selection(ids=(7, 2)), "27"),
        (Selection(ids=7), "7"),
        (Selection(limit=1), "147"),
        (Selection(limit=2), "12457"),
        (Selection(categories=("writing", "math"), limit=2), "12"),
        (Selection(first=5), "12345"),
        (Selection(first=100), "1234567"),
        (Selection(limit=1, first=2), "14"),
        (Selection(ids=("3", "5", "6"), limit=1), "35"),
        (Selection(sample=100), "1234567"),
        (Selection(first=3, sample=3), "123"),
        (Selection(part="1/2"), "1357"),
        (Selection(part="2/2"), "246"),
        (Selection(part="3/3"), "36"),
        (Selection(limit=2, part="2/2"), "25"),
    ],
)
def test_each_key_keeps_what_it_says_in_the_order_of_the_file(selection, kept):
    assert ids(select(SUITE, selection)) == kept


def test_selecting_leaves_the_given_list_alone():
    before = list(SUITE)
    select(SUITE, Selection(order="shuffled", limit=1))
    assert before == SUITE


def test_a_seed_names_the_same_cases_on_every_machine():
    cases = [make_case(number, "qa", "qa") for number in range(20)]
    assert [case.id for case in select(cases, Selection(sample=5, seed=7))] == ["1", "2", "13", "14", "15"]
    assert ids(select(cases, Selection(first=6, order="shuffled", seed=7))) == "102453"


def test_another_seed_draws_another_sample_and_another_order():
    cases = [make_case(number, "qa", "qa") for number in range(50)]
    samples = {tuple(case.id for case in select(cases, Selection(sample=10, seed=seed))) for seed in range(5)}
    orders = {tuple(case.id for case in select(cases, Selection(order="shuffled", seed=seed))) for seed in range(5)}
    assert len(samples) == len(orders) == 5


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        *(({"seed": seed}, "suite.seed=.*expected a whole number") for seed in (None, 1.5, "a", True)),
        ({"order": "random"}, "suite.order='random': expected one of file, shuffled"),
        ({"categories": ("writng", "qa")}, r"suite.categories=writng, qa: .* has no writng; did you mean writing\?"),
        ({"categories": ("writng",)}, r"It has multi-turn, qa, rag, writing, math\."),
        ({"ids": ("1",), "categories": ("qa",), "limit": 2},
         r"^suite.ids=1, suite.categories=qa, suite.limit=2 leaves no case of 7\."
         r" .*multi-turn \(3\), qa \(3\), rag \(1\)"),
        *(({key: empty}, f"suite.{key} is empty") for key in ("ids", "categories") for empty in ((), [], "")),
        *(({key: value}, rf"suite\.{key}={value!r}: expected a whole number of at least 1")
          for key in ("limit", "first", "sample") for value in (0, -1, 2.0, True, "3")),
        *(({"part": part}, f"suite.part={part}: expected k/n")
          for part in ("0/2", "3/2", "1", "half", "1/2/3", "-1/2")),
    ],
)  # fmt: skip
def test_a_selection_that_cannot_be_names_its_key_and_what_there_is(keys, says):
    with pytest.raises(InputError, match=says):
        select(SUITE, Selection(**keys))


def test_an_unknown_id_is_named_and_a_long_list_of_ids_is_cut():
    cases = [make_case(number, "qa", "qa") for number in range(100, 600)]
    with pytest.raises(InputError) as caught:
        select(cases, Selection(ids=("1000", "100")))
    message = str(caught.value)
    for part in ("suite.ids=1000, 100: the suite has no 1000", "100, 101", "599 (500 in all)"):
        assert part in message
    assert len(message) < 300


def test_no_cases_at_all_is_an_error_too():
    with pytest.raises(InputError, match="no cases to select from"):
        select([], Selection())


@st.composite
def suites(draw) -> list[Case]:
    tasks = draw(st.lists(st.sampled_from(sorted(RAW_OF)), min_size=1, max_size=30))
    return [make_case(n, task, draw(st.sampled_from(RAW_OF[task]))) for n, task in enumerate(tasks)]


counts = st.none() | st.integers(1, 12)


@st.composite
def suites_and_selections(draw) -> tuple[list[Case], Selection]:
    cases = draw(suites())
    there = sorted({name for case in cases for name in (case.category, case.subcategory)})
    selection = Selection(
        categories=draw(st.none() | st.lists(st.sampled_from(there), min_size=1).map(tuple)),
        limit=draw(counts),
        sample=draw(counts),
        first=draw(counts),
        seed=draw(st.integers(-5, 10**9)),
        order=draw(st.sampled_from(["file", "shuffled"])),
    )
    return cases, selection


@given(suites_and_selections())
def test_a_selection_is_a_subset_within_every_bound(drawn):
    cases, selection = drawn
    kept = select(cases, selection)
    assert kept
    assert set(kept) <= set(cases)
    assert len(set(kept)) == len(kept)
    for bound in (selection.sample, selection.first):
        assert bound is None or len(kept) <= bound
    if selection.limit is not None:
        assert max(Counter(case.category for case in kept).values()) <= selection.limit
    if selection.categories is not None:
        assert all({case.category, case.subcategory} & set(selection.categories) for case in kept)


@given(suites_and_selections())
def test_the_same_selection_gives_the_same_cases_and_shuffling_only_permutes_them(drawn):
    cases, selection = drawn
    others = {field: getattr(selection, field) for field in ("categories", "limit", "sample", "first", "seed")}
    in_file_order = select(cases, Selection(**others))
    shuffled = select(cases, Selection(**others, order="shuffled"))
    assert select(cases, selection) == select(cases, selection)
    assert Counter(shuffled) == Counter(in_file_order)
    assert in_file_order == sorted(in_file_order, key=lambda case: int(case.id))


@given(suites(), st.integers(1, 12))
def test_limit_takes_the_first_of_each_category_or_all_that_there_are(cases, limit):
    kept = select(cases, Selection(limit=limit))
    for category in {case.category for case in cases}:
        of_it = [case for case in cases if case.category == category]
        assert [case for case in kept if case.category == category] == of_it[:limit]


@given(suites(), st.integers(1, 40), st.integers(0, 99))
def test_a_sample_has_the_number_asked_for_or_all_that_there_are(cases, count, seed):
    assert len(select(cases, Selection(sample=count, seed=seed))) == min(count, len(cases))
