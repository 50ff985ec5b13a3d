"""In-test peers of placement: real gRPC servers whose state is a few dictionaries.

They enforce what the real ones promise (who holds which slot, who generates), so that a test can
ask after each case: is the world in exactly one place, and is nothing left behind?
"""

# gRPC names its methods.
# ruff: noqa: N802

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from services.admission.device import decide_session
from services.admission.parse import session_request
from services.admission.policy import Policy
from tests.rows import row
from tests.unit.placement.makers import EQUAL
from tests.unit.placement.park_fakes import ParkedCopies
from worldline.admissibility.profile_row import RequestShape
from worldline.admissibility.row_codec import row_to_proto, shape_to_proto
from worldline.contract import DecodeTier, DeterminismTier
from worldline.errors import CapacityExhausted, Conflict, NotFound, TicketRefused
from worldline.rpc.server import GrpcServer
from worldline.state.codec import (
    digests_to_proto,
    layout_to_proto,
    manifest_to_proto,
)
from worldline.state.layout import flat_layout
from worldline.state.manifest import CRC64NVME, Digests, Fingerprint, Manifest
from worldline.ticket import MovePurpose, TicketClaims, TicketSigner, ticket_to_proto
from worldline.v1 import (
    admission_pb2,
    admission_pb2_grpc,
    engine_pb2,
    engine_pb2_grpc,
    move_pb2,
    mover_pb2,
    mover_pb2_grpc,
)
from worldline.verdict import RejectReason, Verdict, verdict_to_proto

LAYOUT = flat_layout("kv", 2048)
DIGESTS = Digests(CRC64NVME, 1024, (11, 12), (13,), 14)
FLIPPED = Digests(CRC64NVME, 1024, (11, 99), (98,), 97)


@dataclass
class Faults:
    """What goes wrong, by method; and what was called, in order, over all peers."""

    calls: list[str] = field(default_factory=list)
    errors: dict[str, list[Exception]] = field(default_factory=dict)
    #: Errors after the work was done: the reply is lost.
    lost_replies: dict[str, list[Exception]] = field(default_factory=dict)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    reached: dict[str, asyncio.Event] = field(default_factory=dict)

    def fail(self, method: str, *errors: Exception) -> None:
        self.errors.setdefault(method, []).extend(errors)

    def lose_reply(self, method: str, *errors: Exception) -> None:
        self.lost_replies.setdefault(method, []).extend(errors)

    def hold(self, method: str) -> asyncio.Event:
        """The method waits until the event that is returned is set."""
        self.reached[method] = asyncio.Event()
        self.gates[method] = asyncio.Event()
        return self.gates[method]

    async def reach(self, method: str) -> None:
        async with asyncio.timeout(60):
            await self.reached[method].wait()

    async def around(self, method: str, work: Callable[[], Any]) -> Any:
        self.calls.append(method)
        if method in self.gates:
            self.reached[method].set()
            await self.gates[method].wait()
        if self.errors.get(method):
            raise self.errors[method].pop(0)
        result = work()
        if self.lost_replies.get(method):
            raise self.lost_replies[method].pop(0)
        return result


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    """Worlds by session: phase and epoch."""

    def __init__(self, name: str, faults: Faults, mover: FakeMover) -> None:
        self.name = name
        self.faults = faults
        self.mover = mover
        self.fingerprint: Fingerprint = EQUAL
        self.worlds: dict[str, tuple[str, int]] = {}
        self.slots: dict[str, move_pb2.SlotRef] = {}
        self.moved_to: dict[str, str] = {}
        self.suspended: list[str] = []
        self.forks: list[engine_pb2.ForkWorldRequest] = []
        self.tiers: dict[str, int] = {}
        #: Shapes whose quanta it was asked to time.
        self.measured: list[RequestShape] = []
        #: By preset, where two runs of it part here.
        self.differs: dict[str, str] = {}

    def manifest(self, session_id: str, *, digests: bool) -> Manifest:
        return Manifest(
            session_id=session_id,
            epoch=self.worlds[session_id][1],
            block_index=7,
            layout=LAYOUT,
            fingerprint=self.fingerprint,
            determinism_tier=DeterminismTier.T0_BITWISE,
            digests=DIGESTS if digests else None,
        )

    async def _do(self, method: str, work: Callable[[], Any]) -> Any:
        return await self.faults.around(f"{self.name}.{method}", work)

    async def OpenWorld(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            t0 = request.contract.determinism_tier == DeterminismTier.T0_BITWISE
            if t0 and request.world.preset in self.differs:
                raise Conflict("it differs from itself", reason="NOT_DETERMINISTIC")
            self.tiers[request.session_id] = request.contract.determinism_tier
            slot = self.mover.allocate(request.session_id, "live")
            self.worlds[request.session_id] = ("running", request.epoch)
            self.slots[request.session_id] = slot
            return engine_pb2.OpenWorldResponse(layout=layout_to_proto(LAYOUT), slot=slot)

        return await self._do("OpenWorld", work)

    async def ForkWorld(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            phase, epoch = self.worlds[request.session_id]
            assert (phase, epoch) == ("running", request.epoch)
            self.forks.append(request)
            slots = {
                one.session_id: self.mover.allocate(one.session_id, "live")
                for one in request.branches
            }
            for one in request.branches:
                self.worlds[one.session_id] = ("running", one.epoch)
            self.slots |= slots
            made = [
                engine_pb2.ForkWorldResponse.Branch(layout=layout_to_proto(LAYOUT), slot=slot)
                for slot in slots.values()
            ]
            return engine_pb2.ForkWorldResponse(block_index=7, branches=made)

        return await self._do("ForkWorld", work)

    async def CloseWorld(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            self.worlds.pop(request.session_id, None)
            return engine_pb2.CloseWorldResponse()

        return await self._do("CloseWorld", work)

    async def RegisterWorld(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            manifest = self.manifest(request.session_id, digests=True)
            return engine_pb2.RegisterWorldResponse(
                manifest=manifest_to_proto(manifest), slot=self.slots[request.session_id]
            )

        return await self._do("RegisterWorld", work)

    async def WarmWorld(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            preset = request.world.preset
            answer = engine_pb2.WarmWorldResponse(
                extent_bytes=LAYOUT.extent_bytes,
                self_check=engine_pb2.SelfCheck(
                    preset=preset, differs=self.differs.get(preset, "")
                ),
            )
            if request.measure:
                shape = RequestShape(request.world.preset, DecodeTier(request.measure))
                self.measured.append(shape)
                answer.row.CopyFrom(row_to_proto(row(shape=shape)))
            return answer

        return await self._do("WarmWorld", work)

    async def Freeze(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            if request.session_id not in self.worlds:
                raise NotFound("no such world")
            self.worlds[request.session_id] = ("frozen", request.epoch)
            return engine_pb2.FreezeResponse(
                manifest=manifest_to_proto(self.manifest(request.session_id, digests=False)),
                slot=self.slots[request.session_id],
            )

        return await self._do("Freeze", work)

    async def Thaw(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            if request.session_id not in self.worlds:
                raise NotFound("no such world")
            self.worlds[request.session_id] = ("running", request.epoch)
            return engine_pb2.ThawResponse(block_index=7)

        return await self._do("Thaw", work)

    async def Attach(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            assert request.manifest.HasField("digests")
            self.worlds[request.session_id] = ("attached", request.manifest.epoch)
            self.slots[request.session_id] = request.slot
            assert request.manifest.determinism_tier == request.contract.determinism_tier
            self.tiers[request.session_id] = request.contract.determinism_tier
            return engine_pb2.AttachResponse()

        return await self._do("Attach", work)

    async def Activate(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            if request.session_id not in self.worlds:
                raise NotFound("no such world")
            self.worlds[request.session_id] = ("running", request.epoch)
            return engine_pb2.ActivateResponse(block_index=7)

        return await self._do("Activate", work)

    async def Detach(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            self.worlds.pop(request.session_id, None)
            if request.suspended:
                self.suspended.append(request.session_id)
            if request.engine_address:
                self.moved_to[request.session_id] = request.engine_address
            return engine_pb2.DetachResponse()

        return await self._do("Detach", work)


class FakeMover(ParkedCopies, mover_pb2_grpc.MoverServiceServicer):
    """Slots by (index, generation): who has it, in which role."""

    def __init__(self, name: str, faults: Faults, slots_total: int = 4) -> None:
        super().__init__()
        self.name = name
        self.faults = faults
        self.slots_total = slots_total
        self.slots: dict[tuple[int, int], tuple[str, str]] = {}
        self.generation = 0
        self.digests = DIGESTS
        self.landed = DIGESTS
        self.push_cancelled = asyncio.Event()
        self.promoted = asyncio.Event()
        #: Everything of the latest push to here is here.
        self.has_landed = asyncio.Event()
        self.ticket_ran_out = asyncio.Event()
        self.wires: list[mover_pb2.DescribeMoverResponse.Wire] = []
        #: Pushes whose client went while they waited for their wire.
        self.withdrawn = asyncio.Event()

    def allocate(self, session_id: str, role: str) -> move_pb2.SlotRef:
        taken = {index for index, _ in self.slots}
        free = [index for index in range(self.slots_total) if index not in taken]
        if not free:
            raise CapacityExhausted("no free slot")
        self.generation += 1
        self.slots[free[0], self.generation] = (session_id, role)
        return move_pb2.SlotRef(node_id=self.name, slot_index=free[0], generation=self.generation)

    async def _do(self, method: str, work: Callable[[], Any]) -> Any:
        return await self.faults.around(f"{self.name}.{method}", work)

    async def Reserve(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            claims = move_pb2.TicketClaims.FromString(request.ticket.claims)
            slot = self.allocate(claims.session_id, "shadow")
            return mover_pb2.ReserveResponse(reservation_id=claims.ticket_id, slot=slot)

        return await self._do("Reserve", work)

    async def Push(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        requests = aiter(request_iterator)
        request = (await anext(requests)).order
        claims = move_pb2.TicketClaims.FromString(request.ticket.claims)
        kind = "Probe" if claims.purpose == move_pb2.MOVE_PURPOSE_PROBE else "Push"
        extent_bytes = request.layout.extent_bytes
        if kind == "Push":
            self.peer_landed(claims.target_node_id).clear()
            try:
                await self._do("Arm", lambda: None)
            except asyncio.CancelledError:
                self.withdrawn.set()
                raise
        yield mover_pb2.PushResponse(armed=mover_pb2.PushArmed())
        going = asyncio.ensure_future(anext(requests, None))
        late = asyncio.ensure_future(self.ticket_ran_out.wait())
        try:
            await asyncio.wait({going, late}, return_when=asyncio.FIRST_COMPLETED)
            if not going.done():
                raise TicketRefused("too late", reason="TICKET_EXPIRED")
            if (message := going.result()) is None:
                self.push_cancelled.set()
                return
        finally:
            going.cancel()
            late.cancel()
            await asyncio.gather(going, late, return_exceptions=True)
        assert message.WhichOneof("event") == "go"
        yield mover_pb2.PushResponse(
            progress=mover_pb2.PushProgress(sent_bytes=extent_bytes // 2, total_bytes=extent_bytes)
        )
        try:
            await self._do(kind, lambda: None)
        except asyncio.CancelledError:
            self.push_cancelled.set()
            raise
        target = claims.target_node_id
        slot = next(iter(self.peer_slots(target, claims.session_id)))
        outcome = mover_pb2.PushOutcome(
            push_stats=move_pb2.PushStats(
                wire_bytes=extent_bytes,
                chunks=1,
                wire_ms=1.0,
                verification=request.verification or move_pb2.VERIFICATION_TAIL,
                lanes=["memory"],
            )
        )
        if kind == "Push":
            outcome.digests.CopyFrom(digests_to_proto(self.digests))
            outcome.receipt.CopyFrom(
                move_pb2.Receipt(
                    move_id=claims.move_id,
                    slot=slot,
                    topology_hash=request.layout.topology_hash,
                    digests=digests_to_proto(self.landed),
                    received_bytes=extent_bytes,
                )
            )
        self.peer_landed(target).set()
        yield mover_pb2.PushResponse(outcome=outcome)

    #: Set by the cluster: slots that a session has on a node.
    peer_slots: Callable[[str, str], list[move_pb2.SlotRef]]
    #: And where it is told that everything has landed.
    peer_landed: Callable[[str], asyncio.Event]

    async def Verify(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            if self.digests == DIGESTS:
                if request.promote:
                    self.promote()
                return mover_pb2.VerifyResponse(equal=True, digests=digests_to_proto(DIGESTS))
            return mover_pb2.VerifyResponse(
                equal=False,
                digests=digests_to_proto(self.digests),
                failure=move_pb2.Failure(
                    reason="DIGEST_MISMATCH", message="differs", leaf="kv", granule=1
                ),
            )

        if request.landing:
            assert not request.manifest.HasField("digests")
            await self.has_landed.wait()
        return await self._do("Verify", work)

    def promote(self) -> None:
        """A test moves one session at a time: a SHADOW slot is what was verified."""
        for key, (session_id, role) in self.slots.items():
            if role == "shadow":
                self.slots[key] = (session_id, "live")
                self.promoted.set()

    async def Release(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            key = (request.slot.slot_index, request.slot.generation)
            return mover_pb2.ReleaseResponse(released=self.slots.pop(key, None) is not None)

        return await self._do("Release", work)

    async def DescribeMover(self, request: Any, context: Any) -> Any:
        roles = {"shadow": move_pb2.SLOT_ROLE_SHADOW, "live": move_pb2.SLOT_ROLE_LIVE}

        def work() -> Any:
            return mover_pb2.DescribeMoverResponse(
                node_id=self.name,
                slots=[
                    mover_pb2.DescribeMoverResponse.Slot(
                        slot=move_pb2.SlotRef(
                            node_id=self.name, slot_index=index, generation=generation
                        ),
                        role=roles[role],
                        session_id=session_id,
                        extent_bytes=7,
                    )
                    for (index, generation), (session_id, role) in self.slots.items()
                ],
                wires=self.wires,
            )

        return await self._do("DescribeMover", work)


class FakeAdmission(admission_pb2_grpc.AdmissionServiceServicer):
    """Tickets that are held, and the verdicts to give."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.held: dict[str, str] = {}
        self.finished: list[admission_pb2.FinishMoveRequest] = []
        self.verdicts: list[Verdict] = []
        self.session_verdicts: list[Verdict] = []
        self.measured = True
        #: Which of the targets to choose, by node; empty: the first.
        self.chosen_node_id = ""
        self.horizon_ms = 400.0
        #: Restarted, and not yet told what is under way.
        self.relearning = False
        self.told: list[admission_pb2.RelearnRequest] = []
        self.asked: list[admission_pb2.AdmitMoveRequest] = []
        self.clients: list[str] = []
        self.loads: list[admission_pb2.DeviceLoad] = []
        #: Decide about sessions by the arithmetic of the real one.
        self.reckons = False
        self._signer = TicketSigner.generate()

    async def AdmitSession(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            self.loads.append(request.device)
            if self.reckons:
                return self._reckon(request)
            known = {one.shape.preset for one in request.device.rows}
            lacks = {request.preset, *(one.preset for one in request.device.residents)} - known
            if request.contract.period_ms > 0 and lacks:
                no = Verdict.reject(RejectReason.QUANTUM_UNMEASURED, "unknown", retry_after_ms=9)
                return admission_pb2.AdmitSessionResponse(
                    verdict=verdict_to_proto(no),
                    unmeasured=[shape_to_proto(RequestShape(one)) for one in sorted(lacks)],
                )
            verdict = self.session_verdicts.pop(0) if self.session_verdicts else None
            return admission_pb2.AdmitSessionResponse(
                verdict=verdict_to_proto(verdict or Verdict.admit("room"))
            )

        return await self.faults.around("AdmitSession", work)

    def _reckon(self, request: Any) -> admission_pb2.AdmitSessionResponse:
        decision = decide_session(session_request(request), Policy())
        return admission_pb2.AdmitSessionResponse(
            verdict=verdict_to_proto(decision.verdict),
            unmeasured=[shape_to_proto(one) for one in decision.unmeasured],
        )

    async def AdmitMove(self, request: Any, context: Any) -> Any:
        return await self.faults.around("AdmitMove", lambda: self._admit(request))

    def _admit(self, request: Any) -> admission_pb2.AdmitMoveResponse:
        self.clients.append(request.client_id)
        self.asked.append(request)
        target = next(
            (one for one in request.targets if one.node_id == self.chosen_node_id),
            request.targets[0],
        )
        if self.relearning and request.purpose == move_pb2.MOVE_PURPOSE_SESSION:
            no = Verdict.reject(RejectReason.RELEARNING, "just started", retry_after_ms=50)
            return admission_pb2.AdmitMoveResponse(verdict=verdict_to_proto(no))
        verdict = self.verdicts.pop(0) if self.verdicts else None
        probe = request.purpose == move_pb2.MOVE_PURPOSE_PROBE
        if verdict is None and not self.measured and not probe:
            verdict = Verdict.reject(RejectReason.PATH_UNMEASURED, "never measured")
        if verdict is not None:
            return admission_pb2.AdmitMoveResponse(
                verdict=verdict_to_proto(verdict),
                target_node_id=target.node_id,
                target_engine_id=target.engine_id,
            )
        claims = TicketClaims(
            ticket_id=f"t-{request.move_id}",
            move_id=request.move_id,
            session_id=request.session_id,
            epoch=request.epoch,
            source_node_id=request.source_node_id,
            target_node_id=target.node_id,
            extent_bytes_max=request.extent_bytes,
            topology_hash=request.topology_hash,
            purpose=MovePurpose(request.purpose),
            issued_at_ms=0,
            valid_for_ms=60_000,
            lease_ms=1000,
            horizon_ms=0.0 if probe else self.horizon_ms,
            move_ms=0.0 if probe else 100.0,
            wire_ms=50.0,
        )
        self.held[claims.ticket_id] = request.move_id
        return admission_pb2.AdmitMoveResponse(
            verdict=verdict_to_proto(Verdict.admit("in time", {"l_star_ms": 1.0})),
            ticket=ticket_to_proto(self._signer.sign(claims)),
            target_node_id=target.node_id,
            target_engine_id=target.engine_id,
        )

    async def Relearn(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            self.told.append(request)
            self.relearning = False
            for one in request.moves:
                self.held[one.ticket_id] = one.move_id
            return admission_pb2.RelearnResponse(holds=len(self.held))

        return await self.faults.around("Relearn", work)

    async def FinishMove(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            self.finished.append(request)
            held = [one for one, move_id in self.held.items() if move_id == request.move_id]
            for ticket_id in held:
                del self.held[ticket_id]
            if request.reason == "PROBE" and request.HasField("push_stats"):
                self.measured = True
            return admission_pb2.FinishMoveResponse()

        return await self.faults.around("FinishMove", work)


async def serve(register: Callable[[Any, Any], None], servicer: object) -> tuple[GrpcServer, str]:
    server = GrpcServer()
    address = server.bind("127.0.0.1:0")
    server.add(register, servicer, type(servicer).__name__)
    await server.start()
    return server, address
