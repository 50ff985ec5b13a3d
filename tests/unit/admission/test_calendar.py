"""The calendar against a brute-force look at every moment, and how late moves push others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.admission.calendar import Interval, Resource, earliest_begin_s, settled

# Whole seconds: every change happens at a whole one, so that looking at those is exact.
moments = st.integers(0, 20)
lengths = st.integers(1, 6)
intervals = st.builds(lambda at, length: Interval(float(at), float(at + length)), moments, lengths)
resources = st.builds(Resource, st.integers(1, 3), st.lists(intervals, max_size=6))


def _used(resource: Resource, at_s: float) -> int:
    return sum(one.begin_s <= at_s < one.end_s for one in resource.booked)


def _fits(resource: Resource, begin_s: float, length_s: float) -> bool:
    return all(
        _used(resource, begin_s + offset) < resource.capacity for offset in range(int(length_s))
    )


@given(resources, intervals)
def test_free_is_what_every_moment_says(resource: Resource, wanted: Interval) -> None:
    assert resource.free(wanted) == _fits(resource, wanted.begin_s, wanted.length_s)


@given(st.lists(resources, max_size=3), lengths, moments)
def test_the_earliest_begin_is_the_first_that_fits(
    wanted: list[Resource], length: int, not_before: int
) -> None:
    found_s = earliest_begin_s(wanted, float(length), float(not_before))
    expected = next(
        at for at in range(not_before, 60) if all(_fits(one, at, length) for one in wanted)
    )
    assert found_s == expected


def test_one_may_begin_as_another_ends() -> None:
    assert Resource(1, (Interval(0.0, 1.0),)).free(Interval(1.0, 2.0))


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
