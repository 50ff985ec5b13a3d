"""Wire keeper: waiters that are granted, refused by time alone, cancelled, and listed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from services.mover.wirekeeper import WireKeeper
from services.mover.wires import WireAsk, WireDirection, Wires
from services.mover.wirewait import WireWait
from tests.unit.mover.test_tickets import claims
from worldline.errors import CapacityExhausted, InvalidInput, InvariantBroken
from worldline.telemetry import start

LONG_S = 60.0


@pytest.fixture
async def keeper() -> AsyncIterator[WireKeeper]:
    keeper = WireKeeper(Wires("m"))
    timer = asyncio.create_task(keeper.run())
    yield keeper
    assert not timer.done(), "it runs until it is cancelled"
    timer.cancel()
    await asyncio.gather(timer, return_exceptions=True)
    assert keeper.census() == {"wires_held": 0, "wires_waiting": 0}
    assert keeper.listing() == ()


def now() -> float:
    return asyncio.get_running_loop().time()


def wait(wire_id: str, within_s: float = math.inf, until_s: float = LONG_S, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "direction": WireDirection.INTO,
        "peer_node_id": f"peer-{wire_id}",
        "bulk": False,
        "deadline_s": now() + within_s,
        "move_s": 0.0,
        "wire_s": 0.0,
    }
    return WireWait(WireAsk(wire_id, **{**values, **changes}), now() + until_s)


def take(keeper: WireKeeper, waiting: WireWait) -> asyncio.Task[None]:
    wire_id = waiting.ask.wire_id
    return asyncio.create_task(keeper.take(waiting, claims(ticket_id=wire_id)))


async def turn() -> None:
    """Let everybody run who can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_alone_it_is_granted_without_giving_up_the_loop(keeper: WireKeeper) -> None:
    taking = keeper.take(wait("one"), claims(ticket_id="one"))
    with pytest.raises(StopIteration):
        taking.send(None)
    assert keeper.census() == {"wires_held": 1, "wires_waiting": 0}
    keeper.give_back("one")
    keeper.give_back("one")


async def test_the_next_gets_it_when_it_is_given_back(keeper: WireKeeper) -> None:
    await take(keeper, wait("one"))
    late, early = take(keeper, wait("late", 50.0)), take(keeper, wait("early", 40.0))
    await turn()
    assert keeper.census() == {"wires_held": 1, "wires_waiting": 2}
    keeper.give_back("one")
    await early
    assert not late.done()
    keeper.give_back("early")
    await late
    keeper.give_back("late")


async def test_a_wait_is_a_span_of_its_move_and_no_wait_is_none(
    keeper: WireKeeper,
) -> None:
    exporter = InMemorySpanExporter()
    telemetry = start("test", span_exporters=[exporter])
    try:
        await take(keeper, wait("one"))
        waiting = take(keeper, wait("two"))
        await turn()
        keeper.give_back("one")
        await waiting
        with pytest.raises(CapacityExhausted):
            await take(keeper, wait("three", 0.05))
        keeper.give_back("two")
    finally:
        telemetry.shutdown()
    granted, refused = exporter.get_finished_spans()
    assert granted.name == refused.name == "mover.wire_wait"
    assert (granted.status.is_ok, refused.status.is_ok) == (True, False)
    attributes = {"worldline.move_id": "m", "worldline.way": "into"}
    assert dict(granted.attributes or {}) == attributes


async def test_time_alone_refuses_who_waits_for_an_overdue_holder(keeper: WireKeeper) -> None:
    await take(keeper, wait("holder", wire_s=0.0))
    with pytest.raises(CapacityExhausted) as caught:
        await take(keeper, wait("waits", 0.1))
    error = caught.value
    assert (error.reason, error.field) == ("WIRE_TOO_LATE", "ticket.horizon_ms")
    assert error.retry_after_ms
    assert "behind 1 others" in error.message
    keeper.give_back("holder")


async def test_who_can_never_make_it_is_refused_at_once(keeper: WireKeeper) -> None:
    with pytest.raises(CapacityExhausted):
        await take(keeper, wait("hopeless", 0.1, move_s=0.2))


async def test_a_wait_without_a_deadline_ends_with_its_ticket(keeper: WireKeeper) -> None:
    await take(keeper, wait("holder"))
    with pytest.raises(CapacityExhausted) as caught:
        await take(keeper, wait("waits", until_s=0.05))
    assert (caught.value.reason, caught.value.field) == ("WIRE_TOO_LATE", "ticket.valid_for_ms")
    keeper.give_back("holder")


async def test_a_waiter_that_is_cancelled_is_withdrawn(keeper: WireKeeper) -> None:
    await take(keeper, wait("holder"))
    first, second = take(keeper, wait("first", 40.0)), take(keeper, wait("second", 50.0))
    await turn()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert keeper.census() == {"wires_held": 1, "wires_waiting": 1}
    keeper.give_back("holder")
    await second
    keeper.give_back("second")


@pytest.mark.parametrize("cancelled_first", [True, False])
async def test_a_grant_that_meets_a_cancellation_goes_to_the_next(
    keeper: WireKeeper, cancelled_first: bool
) -> None:
    await take(keeper, wait("holder"))
    first, second = take(keeper, wait("first", 40.0)), take(keeper, wait("second", 50.0))
    await turn()
    for step in (first.cancel, lambda: keeper.give_back("holder"))[:: 1 if cancelled_first else -1]:
        step()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    keeper.give_back("second")


async def test_a_refused_ask_leaves_what_was_there(keeper: WireKeeper) -> None:
    await take(keeper, wait("one"))
    with pytest.raises(InvariantBroken):
        await take(keeper, wait("one"))
    with pytest.raises(InvalidInput):
        await take(keeper, wait("self", peer_node_id="m"))
    assert keeper.census() == {"wires_held": 1, "wires_waiting": 0}
    keeper.give_back("one")


async def test_what_is_held_and_waited_for_is_listed(keeper: WireKeeper) -> None:
    out = {"direction": WireDirection.OUT_OF}
    await take(keeper, wait("out", 30.0, **out))
    await take(keeper, wait("in"))
    more = take(keeper, wait("more"))
    await turn()
    found = {kept.claims.ticket_id: kept for kept in keeper.listing()}
    assert {name: kept.held for name, kept in found.items()} == {
        "out": False,  # its turn, but not yet its wire
        "in": True,
        "more": False,
    }
    assert 0 < (found["out"].remaining_s or 0) <= 30.0
    assert found["more"].remaining_s is None
    keeper.confirm("out", now() + 700.0)
    keeper.lease("in", now() + 900.0)
    found = {kept.claims.ticket_id: kept for kept in keeper.listing()}
    assert found["out"].held
    assert 600.0 < (found["out"].remaining_s or 0) <= 700.0
    assert 800.0 < (found["in"].remaining_s or 0) <= 900.0
    for name in ("out", "in"):
        keeper.give_back(name)
    await more
    keeper.give_back("more")


async def test_bulk_that_asks_its_peer_hears_that_its_turn_is_taken(keeper: WireKeeper) -> None:
    bulk = {"direction": WireDirection.OUT_OF, "bulk": True}
    await keeper.take(wait("bulk", within_s=LONG_S, **bulk), claims(ticket_id="bulk"))
    asking = asyncio.Event()

    async def ask_peer() -> None:
        asking.set()
        await asyncio.Event().wait()

    granted = asyncio.create_task(keeper.until_granted("bulk", ask_peer()))
    await asking.wait()
    urgent = wait("urgent", within_s=LONG_S / 2, direction=WireDirection.OUT_OF)
    await keeper.take(urgent, claims(ticket_id="urgent"))
    with pytest.raises(CapacityExhausted, match="gave way") as caught:
        await granted
    assert caught.value.reason == "WIRE_TOO_LATE"
    keeper.give_back("bulk")
    assert keeper.census() == {"wires_held": 1, "wires_waiting": 0}
    keeper.give_back("urgent")


async def test_a_grant_that_meets_a_recall_is_none(keeper: WireKeeper) -> None:
    bulk = {"direction": WireDirection.OUT_OF, "bulk": True}
    await keeper.take(wait("bulk", within_s=LONG_S, **bulk), claims(ticket_id="bulk"))
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask_peer() -> None:
        await answered

    granted = asyncio.create_task(keeper.until_granted("bulk", ask_peer()))
    await turn()
    answered.set_result(None)
    await keeper.take(
        wait("urgent", within_s=LONG_S / 2, direction=WireDirection.OUT_OF),
        claims(ticket_id="urgent"),
    )
    with pytest.raises(CapacityExhausted):
        await granted
    keeper.give_back("bulk")
    keeper.give_back("urgent")


async def test_what_asking_the_peer_returns_or_raises_comes_through(keeper: WireKeeper) -> None:
    await keeper.take(wait("one", direction=WireDirection.OUT_OF), claims(ticket_id="one"))

    async def answer() -> int:
        return 7

    async def fail() -> int:
        raise InvalidInput("no", field="x")

    assert await keeper.until_granted("one", answer()) == 7
    with pytest.raises(InvalidInput):
        await keeper.until_granted("one", fail())
    keeper.give_back("one")


@pytest.mark.parametrize("passes", range(6))
async def test_however_a_recall_and_a_grant_meet_one_of_two_has_the_wire(
    keeper: WireKeeper, passes: int
) -> None:
    bulk = {"direction": WireDirection.OUT_OF, "bulk": True}
    await keeper.take(wait("bulk", within_s=LONG_S, **bulk), claims(ticket_id="bulk"))
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask_peer() -> None:
        await answered

    async def bulk_goes_on() -> bool:
        try:
            await keeper.until_granted("bulk", ask_peer())
            keeper.confirm("bulk", now() + LONG_S)
        except CapacityExhausted:
            keeper.give_back("bulk")
            return False
        return True

    going = asyncio.create_task(bulk_goes_on())
    await turn()
    answered.set_result(None)
    for _ in range(passes):
        await asyncio.sleep(0)
    urgent = wait("urgent", within_s=LONG_S / 2, direction=WireDirection.OUT_OF)
    taking = take(keeper, urgent)
    await turn()
    assert going.done()
    assert going.result() != taking.done()
    if going.result():
        keeper.give_back("bulk")
    await taking
    keeper.give_back("urgent")
