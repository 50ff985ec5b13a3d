"""Labels: whatever arrives, so many combinations and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worldline.telemetry.labels import OTHER, Label, LabelSets

OUTCOME = Label("outcome", frozenset({"committed", "aborted"}))
NODE = Label("node")


def test_an_enumeration_is_what_it_is() -> None:
    sets = LabelSets((OUTCOME,))
    assert sets.of(("committed",)) == {"outcome": "committed"}
    assert sets.of(("session-2040e75d",)) == {"outcome": OTHER}


def test_names_beyond_the_room_are_others() -> None:
    sets = LabelSets((OUTCOME, NODE), sets_max=2)
    assert sets.of(("committed", "node-1"))["node"] == "node-1"
    assert sets.of(("aborted", "node-1"))["node"] == "node-1"
    assert sets.of(("committed", "node-2")) == {"outcome": "committed", "node": OTHER}
    # Who was there before stays told apart.
    assert sets.of(("committed", "node-1"))["node"] == "node-1"


def test_what_is_no_name_is_other() -> None:
    sets = LabelSets((NODE,))
    for odd in ("", "a b", "x" * 129, "näher", 'a"b', "a\nb"):
        assert sets.of((odd,)) == {"node": OTHER}


def test_the_same_values_give_the_same_attributes() -> None:
    """The second look is a look-up: nothing is made anew on the way of a block."""
    sets = LabelSets((NODE,))
    assert sets.of(("node-1",)) is sets.of(("node-1",))


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=60))
def test_there_are_never_more_than_the_room_and_the_enumeration(
    seen: list[tuple[str, str]],
) -> None:
    sets_max = 5
    sets = LabelSets((OUTCOME, NODE), sets_max=sets_max)
    told = {tuple(sets.of(values).items()) for values in seen}
    # Beyond the room only the enumeration's values, and `other`, beside `other`.
    assert len(told) <= sets_max + len(OUTCOME.values) + 1
    assert all(dict(each)["outcome"] in {*OUTCOME.values, OTHER} for each in told)
