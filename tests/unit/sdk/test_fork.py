"""Forks and fan-outs from a client's side: what is asked for, and what is closed when."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.unit.sdk.fakes import Stage
from worldline.contract import Contract, ServiceClass, contract_to_proto
from worldline.errors import Conflict, InvalidInput, Unavailable, WorldlineError
from worldline.sdk import Action, Block, Client, FanOut, ForkedFrom
from worldline.sdk.fork import planner_contract
from worldline.sdk.rejected import Rejected
from worldline.sdk.session import Session
from worldline.v1 import move_pb2

CONTRACT = Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=100.0, period_ms=50.0)


def requests(stage: Stage, name: str = "ForkSession") -> list[Any]:
    return [request for called, request in stage.placement.calls if called == name]


async def test_branches_are_sessions_at_their_block(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    stage.world.next_block_index = 5
    first, second = await session.fork(2)
    assert [one.session_id for one in (first, second)] == ["branch-0", "branch-1"]
    assert second.info.forked_from == ForkedFrom("session-1", 1, 5, 1, False)
    assert session.info.forked_from is None
    # No question is asked to find out where to play on.
    assert second._playback is not None
    assert second._playback.next_block_index == 5
    (request,) = requests(stage)
    assert (request.session_id, request.count, request.same_noise) == ("session-1", 2, False)
    assert not request.HasField("contract")
    assert not request.HasField("first_branch")
    assert len(request.idempotency_key) == 32


async def test_what_is_asked_for_is_sent(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    (branch,) = await session.fork(contract=CONTRACT, same_noise=True, first_branch=0)
    (request,) = requests(stage)
    assert request.contract == contract_to_proto(CONTRACT)
    assert (request.same_noise, request.first_branch) == (True, 0)
    assert request.HasField("first_branch")
    assert branch.info.contract == CONTRACT


async def test_one_fork_however_often_it_is_asked_for(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    stage.placement.script["ForkSession"] = [Unavailable("a moment", retry_after_ms=1)]
    await session.fork()
    one, other = requests(stage)
    assert one == other


async def test_no_room_is_a_reject(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    stage.placement.verdict = move_pb2.Verdict(
        reason=move_pb2.REJECT_REASON_DEVICE_FULL, explanation="room for 1", retry_after_ms=5
    )
    with pytest.raises(Rejected) as caught:
        await session.fork(3)
    assert caught.value.verdict.explanation == "room for 1"


@pytest.mark.parametrize(
    ("facts", "field"),
    [({"count": 0}, "count"), ({"count": 65}, "count"), ({"first_branch": -1}, "first_branch")],
)
async def test_bad_forks_are_not_sent(
    stage: Stage, client: Client, facts: dict[str, Any], field: str
) -> None:
    session = await client.open("tiny")
    with pytest.raises(InvalidInput) as caught:
        await session.fork(**facts)
    assert caught.value.field == field
    assert requests(stage) == []


def test_a_planners_branch_keeps_what_its_parent_was_promised() -> None:
    promised = planner_contract(CONTRACT)
    assert promised == replace(CONTRACT, service_class=ServiceClass.C2A_PLANNER, period_ms=0.0)
    cohort = Contract(service_class=ServiceClass.C2B_COHORT, horizon_ms=9.0, cohort="w")
    assert planner_contract(cohort).cohort == ""


async def test_a_fan_out_asks_for_planners_branches(stage: Stage, client: Client) -> None:
    session = await client.open("tiny")
    async with await session.fan_out(2) as fan:
        assert [one.session_id for one in fan.branches] == ["branch-0", "branch-1"]
        assert fan.session is session
    async with await session.fan_out(1, contract=CONTRACT):
        pass
    one, other = requests(stage)
    assert one.contract == contract_to_proto(planner_contract(session.info.contract))
    assert other.contract == contract_to_proto(CONTRACT)
    closed = [request.session_id for request in requests(stage, "CloseSession")]
    assert closed == ["branch-0", "branch-1", "branch-0"]


class Played:
    """A session as a fan-out sees one."""

    def __init__(self, name: str, log: list[str], error: WorldlineError | None = None) -> None:
        self.session_id = name
        self._log = log
        self._error = error

    async def play(self, actions: Iterable[Action], **_wants: Any) -> AsyncGenerator[Block, None]:
        for action in actions:
            if self._error is not None:
                raise self._error
            yield cast(Block, (self.session_id, action))

    async def close(self) -> None:
        self._log.append(f"close {self.session_id}")
        if self._error is not None:
            raise self._error


class Fan:
    """A fan-out of three over `Played` sessions."""

    def __init__(self, failing: str = "") -> None:
        self.log: list[str] = []
        error = Conflict("cannot be closed", reason="MOVE_IN_PROGRESS")
        made = [
            Played(name, self.log, error if name == failing else None)
            for name in ("parent", "a", "b", "c")
        ]
        self.parent, self.a, self.b, self.c = (cast(Session, one) for one in made)
        self.out = FanOut(self.parent, [self.a, self.b, self.c])


async def test_every_branch_plays_its_own_actions() -> None:
    fan = Fan()
    actions = [[Action.keys("W")], [Action.keys("A"), Action.keys("S")], []]
    played = await fan.out.play(actions)
    assert played == [
        [("a", Action.keys("W"))],
        [("b", Action.keys("A")), ("b", Action.keys("S"))],
        [],
    ]
    with pytest.raises(InvalidInput) as caught:
        await fan.out.play(actions[:2])
    assert caught.value.field == "actions"


async def test_a_branch_that_fails_stops_the_play() -> None:
    fan = Fan(failing="b")
    with pytest.raises(Conflict):
        await fan.out.play([[Action.keys("W")]] * 3)
    assert len(fan.out.branches) == 3


async def test_pruned_and_adopted() -> None:
    fan = Fan()
    async with fan.out:
        await fan.out.prune(fan.c)
        assert fan.out.branches == (fan.a, fan.b)
        assert await fan.out.adopt(fan.b) is fan.b
        assert (fan.out.session, fan.out.branches) == (fan.b, ())
    assert fan.log == ["close c", "close a", "close parent"]


async def test_nothing_adopted_leaves_the_session() -> None:
    fan = Fan()
    with pytest.raises(ValueError, match="planner"):
        async with fan.out:
            raise ValueError("the planner failed")
    assert fan.log == ["close a", "close b", "close c"]
    assert fan.out.session is fan.parent


@pytest.mark.parametrize("failing", ["a", "parent"])
async def test_what_cannot_be_closed_does_not_take_the_adopted_along(failing: str) -> None:
    fan = Fan(failing)
    with pytest.raises(Conflict):
        await fan.out.adopt(fan.b)
    assert sorted(fan.log) == ["close a", "close c", "close parent"]
    assert fan.out.session is fan.b
    left = {"a": (fan.a,), "parent": ()}[failing]
    assert fan.out.branches == left
    fan.log.clear()
    if left:
        with pytest.raises(Conflict):
            await fan.out.prune(*left)
    assert "close b" not in fan.log


async def test_somebody_elses_branch_is_neither_pruned_nor_adopted() -> None:
    fan, other = Fan(), Fan()
    for act in (fan.out.prune, fan.out.adopt):
        with pytest.raises(InvalidInput) as caught:
            await act(other.a)
        assert caught.value.field == "branch"
    assert fan.log == other.log == []
