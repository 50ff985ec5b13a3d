"""Run: moves are asked for one after another, decided, signed, carried out and reported.

Time is simulated: moves are asked for at random (exponential gaps), and what is admitted ends when
its wire does. Only what a service would do is on the clock: beside the decision itself that is what
its shortlist has to learn of sessions and moves.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace

from bench.decisions.parts import Part, moment, together
from bench.decisions.paths import Rates, jitter, measure
from bench.decisions.scene import CLIENTS, Scene, Size
from bench.fabric.streams import stream
from services.admission.core import Admission
from services.admission.policy import Policy
from services.admission.requests import MoveReport, MoveRequest, MoveTarget
from services.placement.beginning import new_move
from services.placement.changes import Changes
from services.placement.move import Move
from services.placement.phases import Goal
from services.placement.records import SessionRecord
from services.placement.targets import Target
from worldline.admissibility.path_rate import TransferSample
from worldline.ticket import MovePurpose, TicketClaims, TicketSigner

#: Moves asked for in a simulated second: hundreds are under way, and many want the same wires.
OFFERS_PER_S = 4_000.0
#: From the ticket until both ends ask for the wire, and around the wire.
_AROUND_MS = 20.0


@dataclass(slots=True)
class Timings:
    """Of every decision; and what was decided."""

    #: Placement's choice.
    placement: Part = field(default_factory=Part)
    #: Admission's answer; nothing where placement refused.
    admission: Part = field(default_factory=Part)
    #: One ticket's signature.
    signing: Part = field(default_factory=Part)
    #: What admission does when a move ends.
    finishing: Part = field(default_factory=Part)
    #: What the shortlist does when a session and its move change.
    keeping: Part = field(default_factory=Part)
    verdicts: Counter[str] = field(default_factory=Counter)
    #: Holds in force at every decision.
    holds: list[int] = field(default_factory=list)

    @property
    def decisions(self) -> Part:
        """Placement's choice and admission's answer, signature apart."""
        return together(self.placement, self.admission)

    @property
    def upkeep(self) -> tuple[Part, ...]:
        """What else the process has to do for moves."""
        return self.finishing, self.keeping


@dataclass(frozen=True, slots=True, order=True)
class _UnderWay:
    """An admitted move, by its end."""

    ends_s: float
    claims: TicketClaims = field(compare=False)
    transfer_ms: float = field(compare=False)


class Run:
    """One fleet and one admission, with the moves under way."""

    def __init__(self, size: Size, seed: int) -> None:
        self.scene = Scene(size, seed)
        self.core = Admission(Policy())
        self.rates = Rates(seed)
        self.paths = measure(self.core, size, seed, self.rates, 0.0)
        self._draw = stream(seed, "decisions/offers")
        self._signer = TicketSigner.from_seed(seed.to_bytes(32, "big"))
        self._now_s = 1.0
        self._number = 0
        self._under_way: list[_UnderWay] = []
        self._moving: set[str] = set()

    def play(self, decisions: int) -> Timings:
        """So many decisions, timed."""
        timings = Timings()
        for _ in range(decisions):
            self._now_s += self._draw.expovariate(OFFERS_PER_S)
            self._end_due(timings)
            self._decide(self._session(), timings)
            timings.holds.append(len(self.core.holds))
        return timings

    def drain(self) -> None:
        """Let every move that is under way end."""
        while self._under_way:
            self._now_s = self._under_way[0].ends_s
            self._end_due(Timings())

    def _session(self) -> SessionRecord:
        """One that is not moving."""
        while True:
            name = self._draw.choice(self.scene.names)
            if name not in self._moving:
                return self.scene.sessions[name]

    def _decide(self, session: SessionRecord, timings: Timings) -> None:
        scene, now_s = self.scene, self._now_s
        self._number += 1
        move_id, client_id = f"move-{self._number}", f"client-{self._draw.randrange(CLIENTS)}"
        named = self._draw.choice(scene.node_ids) if self._draw.random() < 0.05 else ""
        if named == session.node_id:
            named = ""
        begun = moment()
        move, targets = new_move(
            move_id, session, named, Goal.COMMIT, scene.fleet, scene.shortlist, now_s
        )
        chosen = timings.placement.since(begun)
        if not targets:
            timings.admission.add(0, 0)
            assert move.verdict is not None
            timings.verdicts[f"placement: {move.verdict.label}"] += 1
            return
        answer = self.core.admit_move(
            _request(move_id, session, targets), f"ticket-{self._number}", now_s, client_id
        )
        decided = timings.admission.since(chosen)
        timings.verdicts[answer.verdict.label] += 1
        if answer.claims is None:
            return
        self._signer.sign(answer.claims)
        timings.signing.since(decided)
        self._begin(answer.claims, _move_to(move, targets, answer.target.engine_id), timings)

    def _begin(self, claims: TicketClaims, move: Move, timings: Timings) -> None:
        hold = self.core.holds.of_ticket(claims.ticket_id)
        assert hold is not None
        pair = (claims.source_node_id, claims.target_node_id)
        transfer_ms = self.rates.transfer_ms(pair, claims.extent_bytes_max, jitter(self._draw))
        ends_s = hold.wire.begin_s + (transfer_ms + _AROUND_MS) / 1e3
        heapq.heappush(self._under_way, _UnderWay(ends_s, claims, transfer_ms))
        self._moving.add(claims.session_id)
        self._follow(self.scene.begun(move), timings)

    def _end_due(self, timings: Timings) -> None:
        while self._under_way and self._under_way[0].ends_s <= self._now_s:
            ended = heapq.heappop(self._under_way)
            claims = ended.claims
            report = MoveReport(
                ticket_id=claims.ticket_id,
                move_id=claims.move_id,
                sample=TransferSample(
                    claims.extent_bytes_max, ended.transfer_ms, ended.transfer_ms + _AROUND_MS
                ),
                verified=True,
                committed=True,
                reason="",
            )
            begun = moment()
            finished = self.core.finish_move(report, ended.ends_s)
            timings.finishing.since(begun)
            self._follow(self.scene.committed(claims.move_id), timings)
            assert finished is not None, "no hold ends before its move"
            self._moving.remove(claims.session_id)

    def _follow(self, changes: Changes, timings: Timings) -> None:
        begun = moment()
        self.scene.shortlist.follow(changes)
        timings.keeping.since(begun)


def _move_to(move: Move, targets: tuple[Target, ...], engine_id: str) -> Move:
    """The move with the target that admission chose."""
    return replace(
        move, target=next(one.party for one in targets if one.party.engine_id == engine_id)
    )


def _request(move_id: str, session: SessionRecord, targets: tuple[Target, ...]) -> MoveRequest:
    """What admission is asked, without the wire between the two."""
    return MoveRequest(
        move_id=move_id,
        session_id=session.session_id,
        epoch=session.epoch,
        contract=session.contract,
        source_node_id=session.node_id,
        targets=tuple(
            [
                MoveTarget(
                    one.party.node_id,
                    one.party.engine_id,
                    one.host_id,
                    one.slots_free,
                    one.digest_rate_bytes_per_s,
                )
                for one in targets
            ]
        ),
        extent_bytes=session.extent_bytes,
        topology_hash=session.topology_hash,
        purpose=MovePurpose.SESSION,
    )
