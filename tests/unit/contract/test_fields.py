"""Checks of many values at once say of each what the check of one says."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline import fields
from worldline.errors import InvalidInput

texts = st.lists(st.text(max_size=4) | st.sampled_from(["a" * 128, "a" * 129, "a b", ""]))
counts = st.lists(st.integers(-2, 12) | st.sampled_from([True, 1.0, "1"]))
numbers = st.lists(st.floats(-1.0, 12.0) | st.sampled_from([1, True, math.nan, math.inf, "1"]))


def _why(check: Callable[[], Any]) -> str:
    try:
        check()
    except InvalidInput as error:
        return error.message
    return ""


def _first(check: Callable[[Any], Any], values: list[Any]) -> str:
    return next(filter(None, (_why(lambda one=one: check(one)) for one in values)), "")


@given(texts)
def test_names(values: list[str]) -> None:
    expected = _first(lambda one: fields.identifier(one, "x"), values)
    assert _why(lambda: fields.identifiers(values, "x")) == expected


@pytest.mark.parametrize("name", [["n1"], ("n1",), b"n1", 1, None])
def test_a_name_that_is_no_text_is_refused_by_its_field(name: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a name") as caught:
        fields.identifier(name, "node_id")
    assert caught.value.field == "node_id"


@given(counts)
def test_counts(values: list[Any]) -> None:
    expected = _first(lambda one: fields.whole(one, "x", at_most=9), values)
    assert _why(lambda: fields.wholes(values, "x", at_most=9)) == expected


@given(numbers)
def test_numbers(values: list[Any]) -> None:
    expected = _first(lambda one: fields.non_negative(one, "x", at_most=9.0), values)
    assert _why(lambda: fields.non_negatives(values, "x", at_most=9.0)) == expected


@pytest.mark.parametrize("check", [fields.identifiers, fields.wholes, fields.non_negatives])
def test_of_nothing_nothing_is_wrong(check: Callable[[list[Any], str], None]) -> None:
    check([], "x")
