"""Target rooms: which targets of a move can keep its session's period beside what they serve.

A move is held against measured rows as an opening is, by the same answer of admission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from services.placement.choose import no_room_for_period
from services.placement.context import MoveContext
from services.placement.room import RoomAnswer, RoomKeeper, RoomWish
from services.placement.targets import Target
from services.placement.values import Party
from worldline.verdict import RejectReason, Verdict

#: Targets at which rows are measured for one move, while no other has room.
MEASURED_MAX = 3

Found = tuple[Target, ...] | Verdict


class TargetRooms:
    """Asks for the moves of sessions with a period; others need no room of this kind."""

    def __init__(self, room: RoomKeeper) -> None:
        self._room = room

    @asynccontextmanager
    async def found(
        self, context: MoveContext, targets: tuple[Target, ...]
    ) -> AsyncIterator[Found]:
        """Those that have room, or why none has; nobody else is decided on them until the caller
        has noted which one it is (`MoveContext.room_at`).

        Where none has room and some lack rows, rows are measured there, at the best target first.

        Raises:
            Unavailable, DeadlineExceeded: admission could not be asked.
        """
        context.room_at = ""
        period_ms = context.session.contract.period_ms
        if period_ms <= 0:
            yield targets
            return
        wishes = [_wish(context, one.party) for one in targets]
        tried: set[Party] = set()
        while True:
            async with self._room.decided_at_each(wishes) as answers:
                pairs = list(zip(targets, answers, strict=True))
                found = tuple(one for one, answer in pairs if answer.verdict.admitted)
                lacking = _lacking(pairs, tried)
                if found or lacking is None or len(tried) >= MEASURED_MAX:
                    verdicts = [_at_target(one.verdict) for one in answers]
                    yield found or no_room_for_period(period_ms, verdicts)
                    return
            party, answer = lacking
            tried.add(party)
            await self._room.measure(party, answer.unmeasured)


def _wish(context: MoveContext, party: Party) -> RoomWish:
    session = context.session
    return RoomWish(
        contract=session.contract,
        preset=session.world.preset,
        state_bytes=session.extent_bytes,
        party=party,
        client_id=context.client_id,
        moving=True,
    )


def _lacking(
    pairs: list[tuple[Target, RoomAnswer]], tried: set[Party]
) -> tuple[Party, RoomAnswer] | None:
    """The best target that lacks rows and was not measured for this move."""
    for target, answer in pairs:
        if answer.unmeasured and target.party not in tried:
            return target.party, answer
    return None


def _at_target(verdict: Verdict) -> Verdict:
    """The same; a full device is a full target to a move."""
    if verdict.reason is not RejectReason.DEVICE_FULL:
        return verdict
    return replace(verdict, reason=RejectReason.TARGET_FULL)
