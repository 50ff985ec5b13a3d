"""Sweep: paced offers at several loads, decided by the real admission and the real movers' wires.

A move is on time when its target has verified it less than a horizon after both ends asked for the
wire. What does not move is rejected, by admission at once or at its wire, with its world untouched.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.fabric.desk import Answer, Desk
from tests.fabric.offers import Offer
from tests.fabric.opendesk import OpenDesk
from tests.fabric.probing import Prober
from tests.fabric.pushes import Landed, Push, now_s, push_of
from tests.fabric.services import Services
from tests.fabric.starvation import starved_s, starved_since_s
from tests.fabric.worlds import World, make_world, release
from worldline.contract import Contract
from worldline.errors import WorldlineError
from worldline.verdict import RejectReason

ADMITTED = "admitted"
#: What a mover says that withdraws a ticket before its wire.
_WITHDRAWN = RejectReason.WIRE_TOO_LATE.name
#: Until the first offer may come: every task has begun to wait by then.
_LEAD_S = 0.1


@dataclass(slots=True)
class Decided:
    """What became of one offer. Times are since the load's begin, in seconds, on one clock.

    `target` is also that of a reject: the receiver that its numbers are of.
    """

    move_id: str
    source: str
    offered_s: float
    targets: tuple[str, ...]
    #: "admitted", or why not.
    verdict: str = ""
    explanation: str = ""
    numbers: dict[str, float] = field(default_factory=dict)
    retry_after_ms: int = 0
    target: str = ""
    #: When admission had answered, for good; whether a path had to be measured before.
    decided_s: float = 0.0
    probed: bool = False
    #: Both ends were ready and asked; the wire was granted; the go was given.
    asked_wire_s: float | None = None
    granted_s: float | None = None
    went_s: float | None = None
    #: The driver heard that the target had verified, and the source's own time from go to that.
    verified_s: float | None = None
    total_ms: float = 0.0
    #: What admission learns from it.
    transfer_ms: float = 0.0
    frozen_ms: float = 0.0
    #: From asking for the wire until verified; whether that is less than the horizon; and for how
    #: much of it the one of those who took part that had most to wait for a core waited for one.
    took_ms: float = 0.0
    on_time: bool = False
    starved_ms: float = 0.0
    #: Why an admitted move did not end well; empty: it did.
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """One load: what became of each of its offers, in the order of offering."""

    load: float
    begun_s: float
    decided: tuple[Decided, ...]

    def count(self) -> Counter[str]:
        """Offers by outcome; `withdrawn` are rejects at the wire, counted apart."""
        counts = Counter(dict.fromkeys(_OUTCOMES, 0))
        for each in self.decided:
            counts[_outcome(each)] += 1
        return counts

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "load": self.load,
            "begun_s": self.begun_s,
            "offered": len(self.decided),
            **self.count(),
            "reject_reasons": dict(Counter(each.verdict for each in self.decided)),
            "moves": [asdict(each) for each in self.decided],
        }


_OUTCOMES = ("on_time", "missed", "failed", "withdrawn", "rejected")


def _outcome(each: Decided) -> str:
    if each.verdict == _WITHDRAWN:
        return "withdrawn"
    if each.verdict != ADMITTED:
        return "rejected"
    if each.failure:
        return "failed"
    return "on_time" if each.on_time else "missed"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the offers are played: services, and who asks and measures."""

    services: Services
    desk: Desk | OpenDesk
    #: None where nobody asks for measurements.
    prober: Prober | None
    contract: Contract
    size_bytes: int


async def offer_all(stage: Stage, offers: Sequence[Offer], load: float) -> Load:
    """Offer everything in pace; return once every move has ended and its world is closed."""
    worlds = [
        await make_world(stage.services, offer.move_id, offer.source, stage.size_bytes)
        for offer in offers
    ]
    begun_s = now_s() + _LEAD_S
    players = [
        Player(stage, world, offer, begun_s) for world, offer in zip(worlds, offers, strict=True)
    ]
    async with asyncio.TaskGroup() as tasks:
        for player in players:
            tasks.create_task(player.play())
    decided = tuple(player.decided for player in players)
    return Load(load, begun_s, decided)


class Player:
    """Placement's part for one offer."""

    def __init__(
        self, stage: Stage, world: World, offer: Offer, begun_s: float, *, teaches: bool = True
    ) -> None:
        """Of a move that does not teach, admission hears only that it is over."""
        self._teaches = teaches
        self._stage = stage
        self._world = world
        self._offer = offer
        self._begun_s = begun_s
        self.decided = Decided(offer.move_id, offer.source, offer.offered_s, offer.targets)

    async def play(self) -> None:
        """In its time: ask, move where that is admitted, and close the world."""
        await asyncio.sleep(max(0.0, self._begun_s + self._offer.offered_s - now_s()))
        answer = await self._ask()
        prober = self._stage.prober
        if prober is not None and answer.verdict.reason is RejectReason.PATH_UNMEASURED:
            # As placement does: measure the path, once, and ask again.
            self.decided.probed = True
            refused = await prober.measure(self._offer.source, answer.target)
            if refused is None:
                answer = await self._ask()
            else:
                self._note(Answer(refused, answer.target, None))
        if answer.ticket is not None:
            await self._move(answer)
        await release(self._stage.services, self._world, self._world.node, self._world.slot)

    async def _ask(self) -> Answer:
        offer = self._offer
        layout = self._world.layout
        answer = await self._stage.desk.ask(offer.move_id, layout, offer.source, offer.targets)
        self._note(answer)
        return answer

    def _note(self, answer: Answer) -> None:
        note, verdict = self.decided, answer.verdict
        note.decided_s = self._now_s()
        note.verdict, note.explanation = verdict.label, verdict.explanation
        note.numbers, note.retry_after_ms = dict(verdict.numbers), verdict.retry_after_ms
        note.target = answer.target

    async def _move(self, answer: Answer) -> None:
        note, world = self.decided, self._world
        assert answer.ticket is not None
        pushing = push_of(
            self._stage.services,
            answer.ticket,
            world.session_id,
            world.layout,
            source=world.node,
            target=answer.target,
            slot=world.slot,
        )
        landed: Landed | None = None
        try:
            async with pushing as push:
                landed = await self._send(push)
        except WorldlineError as error:
            self._note_end(error)
        stats = None if landed is None else landed.stats
        if landed is not None:
            note.frozen_ms = (landed.verified_s - landed.went_s) * 1e3
        await self._stage.desk.end(
            note.move_id,
            stats if self._teaches else None,
            frozen_ms=note.frozen_ms,
            committed=landed is not None and self._teaches,
            reason="" if landed is not None else note.failure or note.verdict,
        )
        if landed is not None:
            if landed.outcome.receipt.digests != world.digests:
                note.failure = "what landed is not what was sent"
            await release(self._stage.services, world, answer.target, landed.outcome.receipt.slot)

    async def _send(self, push: Push) -> Landed:
        note = self.decided
        starved_before_s = starved_s(self._stage.services.pids(note.source, note.target))
        note.asked_wire_s = self._now_s()
        await push.arm()
        note.granted_s = self._now_s()
        landed = await push.go()
        note.went_s = landed.went_s - self._begun_s
        note.verified_s = landed.verified_s - self._begun_s
        note.total_ms = landed.stats.total_ms
        note.transfer_ms = landed.stats.wire_ms + landed.stats.verify_tail_ms
        note.starved_ms = starved_since_s(starved_before_s) * 1e3
        note.took_ms = (note.verified_s - note.asked_wire_s) * 1e3
        note.on_time = note.took_ms < self._stage.contract.horizon_ms
        return landed

    def _note_end(self, error: WorldlineError) -> None:
        note = self.decided
        if error.reason == _WITHDRAWN and note.granted_s is None:
            note.verdict, note.explanation = error.reason, error.message
            note.retry_after_ms = error.retry_after_ms or 0
        else:
            note.failure = f"{error.reason}: {error.message}"

    def _now_s(self) -> float:
        return now_s() - self._begun_s
