"""Ours: the real admission core, asked as placement asks it, taught by the run's own moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.fabric.cell import Cell
from bench.fabric.fluid import Fabric
from bench.fabric.policies.policy import Admit, Answer, Done, Policy, Reject, Terms, Wait
from bench.fabric.streams import stream
from bench.fabric.transfer import transfer_alone
from bench.fabric.workload import MOVES, Offer, Workload, draw
from services.admission.core import Admission
from services.admission.policy import Policy as Limits
from services.admission.requests import MoveReport, MoveRequest, MoveTarget
from services.placement.drain_values import BULK_WAIT_MS
from worldline.admissibility.path_rate import TransferSample
from worldline.contract import Contract, ServiceClass
from worldline.ticket import MovePurpose, TicketClaims
from worldline.verdict import RejectReason

#: The run begins here on admission's clock: after the probes, before what they taught is old.
_WARM_UP_S = 60.0
#: Of each path, one after the other: what placement sends where admission knows nothing
#: (`services.placement.probe`).
PROBES_BYTES = (*(3 * (1 << 20,)), *(5 * (64 << 20,)))

#: Shadow slots of a receiver: memory is no resource of this cell, as it is none for the other arms.
SLOTS_FREE = MOVES


class WorldlineAdmission(Policy):
    """`services.admission.core` with its default limits, no copy and no tuning.

    Before the run every path is probed on the quiet fabric, through the same core. In the run it
    learns from every move that it admitted, and from nothing else. What it admits asks the movers
    for its wire (`bench.fabric.granting`), so that a decision may be one to wait.
    """

    def __init__(
        self,
        cell: Cell,
        workload: Workload,
        seed: int,
        probes_bytes: Sequence[int] = PROBES_BYTES,
    ) -> None:
        del workload
        self.core = Admission(Limits())
        self._cell = cell
        self._seed = seed
        #: Nodes that are being emptied: nobody is sent there.
        self.emptied: frozenset[str] = frozenset()
        self._contracts: dict[float, Contract] = {}
        self._probes = 0
        self._warm_up(probes_bytes)

    def decide(self, offer: Offer, now_s: float) -> Answer:
        """One request a source with all its receivers, until the core admits one.

        Placement has one source, because a session is at one place. Where an offer has several,
        the sender that is free first is asked about first, by what admission itself knows; among
        idle ones the slowest, because its move could wait least and theirs can wait for the next.
        """
        reasons: list[str] = []
        for source in sorted(offer.sources, key=lambda source: self._turn(source, offer, now_s)):
            request = self._request(offer, source, self._receivers(source), MovePurpose.SESSION)
            answer = self.core.admit_move(request, f"ticket-{offer.move_id}", _clock(now_s))
            if answer.claims is not None:
                return _admit(answer.claims)
            reasons.append(answer.verdict.label)
        # The source asked first was the best one: its reason is the one to report.
        return Reject(reasons[0])

    def decide_bulk(self, offer: Offer, target: str, now_s: float) -> Admit | Wait:
        """A move that nobody waits for, from and to where it was planned; later, if not now."""
        receivers = (MoveTarget(target, slots_free=SLOTS_FREE),)
        request = replace(
            self._request(offer, offer.sources[0], receivers, MovePurpose.SESSION),
            bulk_wait_ms=BULK_WAIT_MS,
        )
        answer = self.core.admit_move(request, f"ticket-{offer.move_id}", _clock(now_s))
        if answer.claims is not None:
            return _admit(answer.claims)
        assert answer.verdict.retry_after_ms > 0, f"never: {answer.verdict.explanation}"
        return Wait(now_s + answer.verdict.retry_after_ms / 1e3)

    def _turn(self, source: str, offer: Offer, now_s: float) -> tuple[float, float, int]:
        free_s = max((hold.wire.end_s for hold in self.core.holds.out_of(source)), default=0.0)
        known = (self.core.paths.get(source, node) for node in self._others(source))
        move_ms = min(
            path.mean_cost.t_migrate_ms(offer.size_bytes) for path in known if path is not None
        )
        return max(free_s, _clock(now_s)), -move_ms, offer.sources.index(source)

    def _receivers(self, source: str) -> tuple[MoveTarget, ...]:
        """Every other node that is not emptied, the one with the fewest moves planned first."""
        others = [node for node in self._others(source) if node not in self.emptied]
        return tuple(
            MoveTarget(node, slots_free=SLOTS_FREE)
            for node in sorted(others, key=lambda node: len(self.core.holds.into(node)))
        )

    def _others(self, source: str) -> list[str]:
        return [node for node in self._cell.nodes if node != source]

    def done(self, done: Done, now_s: float) -> None:
        """End the hold, and teach."""
        sample = TransferSample(
            wire_bytes=done.offer.size_bytes,
            transfer_ms=done.frozen_s * 1e3,
            frozen_ms=done.frozen_s * 1e3,
        )
        self.core.finish_move(_report(done.offer.move_id, sample), _clock(now_s))

    def withdrawn(self, offer: Offer, now_s: float) -> None:
        """End the hold; nothing was measured."""
        self.core.finish_move(_report(offer.move_id, None), _clock(now_s))

    def _request(
        self,
        offer: Offer,
        source: str,
        receivers: tuple[MoveTarget, ...],
        purpose: MovePurpose,
    ) -> MoveRequest:
        contract = self._contracts.get(offer.horizon_s)
        if contract is None:
            contract = Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=offer.horizon_s * 1e3)
            self._contracts[offer.horizon_s] = contract
        return MoveRequest(
            move_id=offer.move_id,
            session_id=f"session-{offer.move_id}",
            epoch=1,
            contract=contract,
            source_node_id=source,
            targets=receivers,
            extent_bytes=offer.size_bytes,
            topology_hash=b"fabric",
            purpose=purpose,
        )

    def _warm_up(self, probes_bytes: Sequence[int]) -> None:
        fabric = Fabric(self._cell, stream(self._seed, "warm-up/stalls"))
        for source in self._cell.nodes:
            for target in self._others(source):
                for size_bytes in probes_bytes:
                    self.probe(fabric, source, target, size_bytes, fabric.now_s - _WARM_UP_S)

    def probe(
        self, fabric: Fabric, source: str, target: str, size_bytes: int, now_s: float
    ) -> bool:
        """One probe on a fabric where nothing else moves; False where the core refused it."""
        self._probes += 1
        offer = Offer(f"probe-{self._probes}", (source,), size_bytes, 1.0, now_s)
        request = self._request(offer, source, (MoveTarget(target),), MovePurpose.PROBE)
        answer = self.core.admit_move(request, f"ticket-{offer.move_id}", _clock(now_s))
        if answer.claims is None:
            return False
        luck = draw(self._cell, self._seed, offer.move_id)
        transfer_s = transfer_alone(fabric, offer, target, luck)
        sample = TransferSample(offer.size_bytes, transfer_s * 1e3)
        self.core.finish_move(_report(offer.move_id, sample), _clock(now_s))
        return True


def _clock(now_s: float) -> float:
    """Admission's clock; the run begins after the warm-up."""
    return now_s + _WARM_UP_S


def _admit(claims: TicketClaims) -> Admit:
    terms = Terms(claims.move_ms / 1e3, claims.wire_ms / 1e3, claims.bulk)
    return Admit(claims.source_node_id, claims.target_node_id, terms)


def _report(move_id: str, sample: TransferSample | None) -> MoveReport:
    measured = sample is not None
    return MoveReport(
        ticket_id=f"ticket-{move_id}",
        move_id=move_id,
        sample=sample,
        verified=measured,
        committed=measured,
        reason="" if measured else RejectReason.WIRE_TOO_LATE.name,
    )
