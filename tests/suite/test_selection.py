"""Selection: what each key keeps, that keys compose in their stated order, and what the errors
say.
"""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.suite.settings import SuiteConfig, select
from specbench.types import Case, InputError

RAW_OF = {"multi-turn": ("writing", "math", "coding"), "qa": ("qa",), "rag": ("rag",)}


def make_case(number: int, category: str, raw: str) -> Case:
    return Case(id=str(number), category=category, turns=(f"question {number}",), subcategory=raw)


TASKS = ["multi-turn"] * 3 + ["qa"] * 3 + ["rag"]
RAW = ("writing", "math", "math", "qa", "qa", "qa", "rag")
SUITE = [
    make_case(number, *names) for number, names in enumerate(zip(TASKS, RAW, strict=True), start=1)
]


def ids(cases, **keys) -> str:
    return "".join(case.id for case in select(cases, SuiteConfig(**keys)))


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({}, "1234567"),
        ({"categories": ["multi-turn"]}, "123"),
        ({"ids": ["7", "2"]}, "27"),
        ({"categories": ["writing", "math"], "limit": 2}, "12"),
        ({"limit": 1, "first": 2}, "14"),
        ({"part": "1/2"}, "1357"),
        ({"limit": 2, "part": "2/2"}, "25"),
    ],
    ids=str,
)
def test_each_key_keeps_what_it_says_in_the_order_of_the_file(keys, kept):
    assert ids(SUITE, **keys) == kept


def test_a_seed_names_the_same_cases_on_every_machine_and_another_seed_other_cases():
    cases = [make_case(number, "qa", "qa") for number in range(20)]
    before = list(cases)
    assert ids(cases, sample=5, seed=7) == "12131415"
    assert ids(cases, first=6, order="shuffled", seed=7) == "102453"
    assert before == cases
    cases = [make_case(number, "qa", "qa") for number in range(50)]
    for keys in ({"sample": 10}, {"order": "shuffled"}):
        assert len({ids(cases, **keys, seed=seed) for seed in range(5)}) == 5


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"categories": ["writng", "qa"]},
        r"suite.categories=writng, qa: .* has no writng; did you mean writing\?"), ({"ids": ["1"],
        "categories": ["qa"], "limit": 2},
         r"^suite.ids=1, suite.categories=qa, suite.limit=2 leaves no case of 7\."
         r" .*multi-turn \(3\), qa \(3\), rag \(1\)"),
    ],
)  # fmt: skip
def test_a_selection_that_cannot_be_names_its_key_and_what_there_is(keys, says):
    with pytest.raises(InputError, match=says):
        select(SUITE, SuiteConfig(**keys))
    with pytest.raises(InputError, match="no cases to select from"):
        select([], SuiteConfig())


def test_an_unknown_id_is_named_and_a_long_list_of_ids_is_cut():
    cases = [make_case(number, "qa", "qa") for number in range(100, 600)]
    with pytest.raises(InputError) as caught:
        select(cases, SuiteConfig(ids=["1000", "100"]))
    assert "suite.ids=1000, 100: the suite has no 1000" in str(caught.value)
    assert len(str(caught.value)) < 300


counts = st.none() | st.integers(1, 12)


@st.composite
def suites_and_selections(draw) -> tuple[list[Case], SuiteConfig]:
    tasks = draw(st.lists(st.sampled_from(sorted(RAW_OF)), min_size=1, max_size=30))
    cases = [
        make_case(n, task, draw(st.sampled_from(RAW_OF[task]))) for n, task in enumerate(tasks)
    ]
    there = sorted({name for case in cases for name in (case.category, case.subcategory)})
    selection = SuiteConfig(
        categories=draw(st.none() | st.lists(st.sampled_from(there), min_size=1)),
        limit=draw(counts),
        sample=draw(counts),
        first=draw(counts),
        seed=draw(st.integers(-5, 10**9)),
        order=draw(st.sampled_from(["file", "shuffled"])),
    )
    return cases, selection


@given(suites_and_selections())
def test_a_selection_is_a_subset_within_every_bound_and_shuffling_only_permutes_it(drawn):
    cases, selection = drawn
    kept = select(cases, selection)
    assert kept == select(cases, selection)
    assert len(set(kept)) == len(kept) > 0
    assert set(kept) <= set(cases)
    for bound in (selection.sample, selection.first):
        assert bound is None or len(kept) <= bound
    if selection.limit is not None:
        limited = select(cases, SuiteConfig(limit=selection.limit))
        for category in {case.category for case in cases}:
            of_it = [case for case in cases if case.category == category]
            assert [case for case in limited if case.category == category] == of_it[
                : selection.limit
            ]
        assert max(Counter(case.category for case in kept).values()) <= selection.limit
    if selection.categories is not None:
        assert all({case.category, case.subcategory} & set(selection.categories) for case in kept)
    in_file_order = select(cases, replace(selection, order="file"))
    assert Counter(kept) == Counter(in_file_order)
    assert list(in_file_order) == sorted(in_file_order, key=lambda case: int(case.id))
