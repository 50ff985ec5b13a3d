from __future__ import annotations

import pytest

from worldline.errors import (
    CapacityExhausted,
    Conflict,
    IntegrityError,
    InvalidInput,
    NotFound,
    Unavailable,
)
from worldline.sdk.route import Join, Resolve, Route


def test_begins_at_the_known_engine_or_asks() -> None:
    assert Route("a:1", 5).begin(0) == Join("a:1")
    assert Route("", 5).begin(0) == Resolve()


def test_a_break_tries_the_same_engine_once_and_then_asks() -> None:
    route = Route("a:1", 5)
    assert route.broken(Unavailable("x"), 0) == Join("a:1")
    second = route.broken(Unavailable("x"), 0.1)
    assert isinstance(second, Resolve)
    assert second.delay_s > 0


def test_delays_grow() -> None:
    route = Route("a:1", 100)
    route.broken(Unavailable("x"), 0)
    delays = [route.broken(Unavailable("x"), 0).delay_s for _ in range(8)]
    assert delays == sorted(delays)
    assert delays[-1] == 1.0


def test_a_move_asks_at_once() -> None:
    assert Route("a:1", 5).moved(2, 0) == Resolve(0)


def test_an_answer_older_than_the_move_is_asked_again() -> None:
    route = Route("a:1", 5)
    route.moved(2, 0)
    assert isinstance(route.resolved(1, "a:1", "live", 0), Resolve)
    assert route.resolved(2, "b:1", "live", 0) == Join("b:1")
    assert route.address == "b:1"


def test_a_delivered_block_ends_the_trouble() -> None:
    route = Route("a:1", 5)
    route.broken(Unavailable("x"), 0)
    route.progressed()
    assert route.broken(Unavailable("x"), 100) == Join("a:1")
    assert route.left_s(100) == 5


def test_patience_is_over_at_the_deadline() -> None:
    route = Route("a:1", 5)
    route.broken(Unavailable("first"), 0)
    with pytest.raises(Unavailable, match="second"):
        route.broken(Unavailable("second"), 4.99)


def test_a_lost_session_is_asked_for_until_patience_is_over() -> None:
    route = Route("a:1", 5)
    route.begin(0)
    assert isinstance(route.resolved(1, "a:1", "lost", 0), Resolve)
    with pytest.raises(Unavailable) as caught:
        route.resolved(1, "a:1", "lost", 4.99)
    assert caught.value.reason == "SESSION_UNAVAILABLE"


def test_a_closed_session_is_final() -> None:
    with pytest.raises(Conflict):
        Route("a:1", 5).resolved(1, "", "closed", 0)


@pytest.mark.parametrize(
    "error",
    [
        Conflict("x", reason="SUPERSEDED"),
        IntegrityError("x", reason="BLOCKS_LOST"),
        InvalidInput("x"),
    ],
)
def test_what_no_join_can_cure_is_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        Route("a:1", 5).broken(error, 0)  # type: ignore[arg-type]


def test_an_engine_that_knows_nothing_of_the_session_is_asked_about() -> None:
    assert isinstance(Route("a:1", 5).broken(NotFound("x"), 0), Resolve)


def test_a_full_engine_says_when() -> None:
    step = Route("a:1", 5).broken(CapacityExhausted("x", retry_after_ms=700), 0)
    assert step == Join("a:1", 0.7)
