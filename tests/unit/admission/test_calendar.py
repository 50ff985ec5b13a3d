"""The calendar against a brute-force look at every moment, and how late moves push others."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from services.admission.calendar import FREE, Interval, earliest_begin_s, resource, settled

# Whole seconds: every change happens at a whole one, so that looking at those is exact.
moments = st.integers(0, 20)
lengths = st.integers(1, 6)
intervals = st.builds(lambda at, length: Interval(float(at), float(at + length)), moments, lengths)
#: Long enough ahead of every interval that none is late.
EARLY_S = -1.0


class _Booked(NamedTuple):
    capacity: int
    planned: list[tuple[Interval, float]]

    @property
    def settled(self) -> list[Interval]:
        return settled(self.planned, self.capacity, EARLY_S)


bookings = st.builds(
    _Booked, st.integers(1, 3), st.lists(st.tuples(intervals, st.just(99.0)), max_size=6)
)


def _fits(one: _Booked, begin_s: float, length_s: float) -> bool:
    booked = one.settled
    return all(
        sum(each.begin_s <= begin_s + offset < each.end_s for each in booked) < one.capacity
        for offset in range(int(length_s))
    )


@given(st.lists(bookings, max_size=3), lengths, moments)
def test_the_earliest_begin_is_the_first_that_fits(
    wanted: list[_Booked], length: int, not_before: int
) -> None:
    resources = [resource(one.planned, one.capacity, EARLY_S) for one in wanted]
    found_s = earliest_begin_s(resources, float(length), float(not_before))
    expected = next(
        at for at in range(not_before, 90) if all(_fits(one, at, length) for one in wanted)
    )
    assert found_s == expected


@given(bookings)
def test_a_resource_is_full_exactly_when_one_more_does_not_fit(one: _Booked) -> None:
    found = resource(one.planned, one.capacity, EARLY_S)
    assert found.booked == len(one.planned)
    for at in range(90):
        full = any(each.begin_s <= at < each.end_s for each in found.full)
        assert full is not _fits(one, float(at), 1.0)
    assert all(before.end_s <= after.begin_s for before, after in pairwise(found.full))


def test_one_may_begin_as_another_ends() -> None:
    first = resource([(Interval(0.0, 1.0), 9.0)], 1, EARLY_S)
    assert earliest_begin_s([first], 1.0, 1.0) == 1.0
    assert earliest_begin_s([first], 1.0, -1.0) == -1.0
    assert earliest_begin_s([first], 1.0, -0.5) == 1.0


def test_what_nobody_uses_is_free_at_once() -> None:
    assert earliest_begin_s([FREE, FREE], 5.0, 3.0) == 3.0
    assert resource([(Interval(0.0, 1.0), 9.0)], 2, EARLY_S).full == ()


def test_a_late_move_is_expected_as_late_again_up_to_its_limit() -> None:
    assert settled([(Interval(0.0, 1.0), 10.0)], 1, 1.5) == [Interval(0.0, 2.0)]
    assert settled([(Interval(0.0, 1.0), 10.0)], 1, 9.0) == [Interval(0.0, 10.0)]
    assert settled([(Interval(0.0, 1.0), 10.0)], 1, 0.5) == [Interval(0.0, 1.0)]


def test_who_is_planned_behind_a_late_move_begins_later() -> None:
    planned = [(Interval(1.0, 2.0), 10.0), (Interval(2.0, 3.0), 10.0), (Interval(0.0, 1.0), 10.0)]
    assert settled(planned, 1, 1.5) == [Interval(0.0, 2.0), Interval(2.0, 3.0), Interval(3.0, 4.0)]


def test_who_is_late_because_of_another_is_behind_it_still() -> None:
    planned = [(Interval(0.0, 1.0), 10.0), (Interval(1.0, 2.0), 10.0)]
    assert settled(planned, 1, 2.5) == [Interval(0.0, 4.0), Interval(4.0, 5.0)]


@given(
    st.lists(st.tuples(intervals, st.floats(30.0, 60.0)), max_size=8),
    st.integers(1, 3),
    st.floats(0.0, 30.0),
)
def test_what_is_settled_never_begins_earlier_and_never_exceeds_the_capacity(
    planned: list[tuple[Interval, float]], capacity: int, now_s: float
) -> None:
    done = settled(planned, capacity, now_s)
    assert len(done) == len(planned)
    for (before, _), after in zip(sorted(planned), done, strict=True):
        assert after.begin_s >= before.begin_s
        assert after.end_s >= min(before.end_s, now_s)
    ahead = [one for one in done if one.begin_s > now_s]
    for one in ahead:
        together = sum(other.begin_s <= one.begin_s < other.end_s for other in done)
        # Those that overlap already are on the wire: nothing that is still to begin joins them.
        assert together <= max(capacity, sum(o.begin_s <= now_s < o.end_s for o in done) + 1)
