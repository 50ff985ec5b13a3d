"""Pacing: a client over its rate waits, is told when to return, and slows nobody else."""

from __future__ import annotations

import asyncio

import pytest

from services.admission.pacing import ClientPacer
from worldline.errors import CapacityExhausted, InvalidInput


def pacer(
    rate_per_s: int = 3, wait_max_s: float = 0.0, waiters_max: int = 2, clients_max: int = 4
) -> ClientPacer:
    return ClientPacer(
        rate_per_s=rate_per_s,
        wait_max_s=wait_max_s,
        waiters_max=waiters_max,
        clients_max=clients_max,
    )


async def _refusal(subject: ClientPacer, client_id: str) -> CapacityExhausted:
    with pytest.raises(CapacityExhausted) as caught:
        await subject.admit(client_id)
    return caught.value


async def test_up_to_its_rate_a_client_does_not_wait() -> None:
    subject = pacer()
    for _ in range(3):
        await subject.admit("one")
    error = await _refusal(subject, "one")
    assert error.reason == "PACED"
    assert error.retry_after_ms == 1_000


async def test_one_flood_slows_nobody_else() -> None:
    subject = pacer()
    for _ in range(3):
        await subject.admit("flood")
    await _refusal(subject, "flood")
    await subject.admit("other")


async def test_a_request_above_the_rate_waits_for_its_turn() -> None:
    subject = pacer(rate_per_s=1, wait_max_s=5.0)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(60):
        await subject.admit("one")
        await subject.admit("one")
    assert loop.time() - began >= 0.9
    assert subject.waiting == 0


async def test_no_more_than_so_many_of_one_client_wait() -> None:
    subject = pacer(rate_per_s=1, wait_max_s=30.0, waiters_max=2)
    await subject.admit("one")
    waiters = [asyncio.ensure_future(subject.admit("one")) for _ in range(2)]
    await asyncio.sleep(0)
    assert subject.waiting == 2
    assert (await _refusal(subject, "one")).reason == "PACED"
    for waiter in waiters:
        waiter.cancel()
    results = await asyncio.gather(*waiters, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert subject.waiting == 0


async def test_clients_are_bounded_and_the_quietest_is_forgotten() -> None:
    subject = pacer(rate_per_s=1, clients_max=2)
    await subject.admit("one")
    await subject.admit("two")
    await _refusal(subject, "one")  # heard of again: "two" is now the quietest
    await subject.admit("three")
    assert len(subject) == 2
    await _refusal(subject, "one")


async def test_a_client_that_waits_is_not_forgotten() -> None:
    subject = pacer(rate_per_s=1, wait_max_s=30.0, clients_max=1)
    await subject.admit("one")
    waiter = asyncio.ensure_future(subject.admit("one"))
    await asyncio.sleep(0)
    assert (await _refusal(subject, "two")).reason == "PACED"
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter


def test_limits_are_checked() -> None:
    with pytest.raises(InvalidInput):
        pacer(rate_per_s=0)
    with pytest.raises(InvalidInput):
        pacer(wait_max_s=float("nan"))
