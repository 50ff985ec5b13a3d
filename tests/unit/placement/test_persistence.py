"""Asking again: what is known, what is unknown, and when to stop."""

from __future__ import annotations

import asyncio

import pytest

from services.placement import persistence
from services.placement.owner import TaskOwner
from services.placement.persistence import ask_again, fulfil
from services.placement.phases import Outcome
from worldline.errors import Conflict, DeadlineExceeded, NotFound, Unavailable, WorldlineError


class Peer:
    """Raises what it was given, in order, then answers."""

    def __init__(self, *errors: WorldlineError) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "ok"


async def test_an_unknown_effect_is_asked_again() -> None:
    peer = Peer(DeadlineExceeded("late"), Unavailable("away"))
    assert await ask_again(peer, attempts=3, gone=lambda: False) == "ok"
    assert peer.calls == 3


async def test_a_definite_answer_is_not() -> None:
    peer = Peer(Conflict("no"))
    with pytest.raises(Conflict):
        await ask_again(peer, attempts=3, gone=lambda: False)
    assert peer.calls == 1


async def test_a_peer_that_falls_silent_while_it_is_asked_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process may go on later: what it does then is nobody's."""
    monkeypatch.setattr(persistence, "SILENT_S", 0.01)
    cancelled = asyncio.Event()

    async def stuck() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with asyncio.timeout(60):
        with pytest.raises(Unavailable) as caught:
            await ask_again(stuck, attempts=3, gone=lambda: True)
    assert caught.value.reason == "PEER_SILENT"
    assert cancelled.is_set()


async def test_a_peer_that_comes_back_in_time_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gone at one look, back at the next: the silence begins anew."""
    monkeypatch.setattr(persistence, "_LOOK_S", 0.001)
    answer = asyncio.get_running_loop().create_future()
    looks = 0

    def gone() -> bool:
        nonlocal looks
        looks += 1
        if looks == 50:
            answer.set_result("ok")
        return looks % 2 == 0

    async with asyncio.timeout(60):
        assert await ask_again(lambda: answer, attempts=1, gone=gone) == "ok"
    assert looks == 50


async def test_asking_ends() -> None:
    peer = Peer(*[Unavailable("away")] * 9)
    with pytest.raises(Unavailable):
        await ask_again(peer, attempts=2, gone=lambda: False)
    assert peer.calls == 2
    with pytest.raises(Unavailable):
        await ask_again(peer, attempts=9, gone=lambda: True)
    assert peer.calls == 3


async def fulfilled(peer: Peer, *, gone: bool = False, within_s: float = 60.0) -> Outcome:
    return await fulfil("test", peer, gone=lambda: gone, within_s=within_s)


async def test_an_obligation_is_pursued_until_acknowledged() -> None:
    peer = Peer(*[DeadlineExceeded("late")] * 3)
    assert await fulfilled(peer) is Outcome.DONE
    assert peer.calls == 4


async def test_an_obligation_ends_with_its_peer() -> None:
    assert await fulfilled(Peer(Unavailable("away")), gone=True) is Outcome.GONE
    assert await fulfilled(Peer(NotFound("never heard of it"))) is Outcome.GONE


async def test_an_obligation_ends_at_a_refusal_or_in_time() -> None:
    refusing = Peer(*[Conflict("no")] * 9)
    assert await fulfilled(refusing) is Outcome.REFUSED
    assert refusing.calls == 3
    assert await fulfilled(Peer(*[Unavailable("x")] * 99), within_s=0.01) is Outcome.REFUSED


async def test_an_owner_sees_every_task_end() -> None:
    owner = TaskOwner()
    gate = asyncio.Event()
    waiting = owner.start(gate.wait(), "waits")
    assert len(owner) == 1
    assert not await owner.wait(0.01)
    gate.set()
    assert await owner.wait(60)
    assert waiting.done()
    stuck = owner.start(asyncio.Event().wait(), "stuck")
    await owner.close()
    assert stuck.cancelled()
    assert len(owner) == 0
