"""Facts survive the wire, whatever they are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.doctor.codec import facts_from_proto, facts_to_proto
from worldline.doctor.facts import (
    ADMISSION,
    ENGINE,
    HERE,
    MOVER,
    PLACEMENT,
    Gpu,
    Interface,
    ProcessFacts,
)
from worldline.doctor.reading import read_facts
from worldline.errors import InvalidInput
from worldline.v1 import doctor_pb2

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
sizes = st.integers(0, 2**63)
small = st.integers(0, 2**31)
maps = st.dictionaries(words, words, max_size=3)
lists = st.lists(words, max_size=3).map(tuple)
by_type: dict[str, st.SearchStrategy[Any]] = {
    "str": words,
    "bool": st.booleans(),
    "Mapping[str, str]": maps,
    "tuple[str, ...]": lists,
    "tuple[Interface, ...]": st.lists(
        st.builds(Interface, words, st.booleans(), small), max_size=2
    ).map(tuple),
}
gpus = st.builds(Gpu, words, words, words, st.none() | small, lists, small, small, small, small)
narrow = {"cpu_count", "numa_node_count", "numa_node", "ptrace_scope"}


def strategy_of(field: dataclasses.Field[Any]) -> st.SearchStrategy[Any]:
    if field.name == "service":
        return st.sampled_from((MOVER, ENGINE, PLACEMENT, ADMISSION, HERE))
    if field.type == "tuple[Gpu, ...]":
        return st.lists(gpus, max_size=2).map(tuple)
    if field.type in ("int", "int | None"):
        numbers = small if field.name in narrow else sizes
        return numbers if field.type == "int" else st.none() | numbers
    return by_type[str(field.type)]


facts = st.builds(
    ProcessFacts, **{field.name: strategy_of(field) for field in dataclasses.fields(ProcessFacts)}
)


@given(facts)
def test_there_and_back(given_facts: ProcessFacts) -> None:
    packed = facts_to_proto(given_facts).SerializeToString()
    assert facts_from_proto(doctor_pb2.ProcessFacts.FromString(packed)) == given_facts


def test_this_process_there_and_back() -> None:
    own = read_facts("mover", "node-1", "node-1", devices=("cpu",), settings={"lane": "auto"})
    assert facts_from_proto(facts_to_proto(own)) == own


def test_facts_of_nobody_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        facts_from_proto(doctor_pb2.ProcessFacts())
    assert caught.value.field == "facts.service"
