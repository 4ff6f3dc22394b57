"""Every count of every method has bounds: a value that no memory holds ends before weights are
read.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import get_type_hints

import pytest

from builders.runs import entry_of, job_for, method_names, settings_of
from methods.parts.parameters import Parameters, count, number
from specbench.runs.entry import make_entry
from specbench.types import InputError

WHOLE = (int, int | None)
LISTS = (list[int], list[int] | None, Sequence[int])
TREES = (list[list[int]], list[list[int]] | None)
ABSURD = (10**9, 2**63, -(10**9))


def parameters_of(name: str) -> list[tuple[dataclasses.Field, object]]:
    """(parameter, its type) of each that is a whole number or has some, or has a bound."""
    kind = type(entry_of(name).method)
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    given = [
        (field, hints[field.name])
        for field in fields
        if field.name in inspect.signature(kind).parameters
    ]
    return [
        (field, hint) for field, hint in given if hint in (*WHOLE, *LISTS, *TREES) or field.metadata
    ]


@pytest.fixture(scope="module")
def card():
    return job_for("method=[pld]").source.card


@pytest.mark.parametrize("name", method_names())
def test_a_number_out_of_bounds_is_refused_before_weights_are_read(name, card):
    """Of every parameter that is a number, or a list of whole ones."""
    for field, hint in parameters_of(name):
        values = [float("nan")] if "allows" in field.metadata else list(ABSURD)
        values += [field.metadata["low"] - 1] if "low" in field.metadata else []
        for value in values:
            given = [value] if hint in LISTS else [[value]] if hint in TREES else value
            with pytest.raises(
                InputError, match=rf"^method\.{name}\.[^:]*{field.name}\b.*: .*expected"
            ):
                make_entry(name, settings_of(name) | {field.name: given}).check_model(card)


def test_every_count_has_bounds():
    found = [
        (f"{name}.{field.name}", field)
        for name in method_names()
        for field, hint in parameters_of(name)
        if hint in WHOLE
    ]
    assert {"pld.num_draft", "sam.n_predicts"} <= dict(found).keys()
    assert [each for each, field in found if field.metadata.get("high") is None] == []


@pytest.mark.parametrize("name", ["token_recycling", "sam_token_recycling"])
def test_no_more_candidates_than_tokens(name):
    """The bundled model has 2048 tokens."""
    with pytest.raises(
        InputError, match=rf"^method\.{name}\.k=2049: expected a whole number from 1 to 2048"
    ):
        job_for(f"method=[{name}]", f"method.{name}.k=2049")


@dataclasses.dataclass
class _Given(Parameters):
    nodes: int = count(3)
    rows: int | None = count(None)
    share: float = number(0.5, lambda value: 0 <= value <= 1, "a share, 0 to 1")
    heat: float | None = number(None, lambda value: value > 0, "more than 0, or null")


def test_null_is_for_parameters_that_are_null_by_default():
    assert (_Given().rows, _Given(heat=None).heat) == (None, None)
    for options, words in (({"nodes": None}, "nodes=null: expected a whole number from 1 to 4096"),
                           ({"share": None}, "share=null: expected a share, 0 to 1"),
                           ({"heat": float("nan")}, "heat=nan: expected more than 0")):  # fmt: skip
        with pytest.raises(InputError, match=f"^{words}"):
            _Given(**options)
