"""In-test engine of placement: a real gRPC server whose state is a few dictionaries.

It enforces what the real one promises (who generates), so that a test can ask after each case: is
the world in exactly one place, and is nothing left behind?
"""

# gRPC names its methods.
# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.rows import row
from tests.unit.placement.fake_mover import FakeMover
from tests.unit.placement.faults import DIGESTS, LAYOUT, Faults
from tests.unit.placement.makers import EQUAL
from worldline.admissibility.profile_row import RequestShape
from worldline.admissibility.row_codec import row_to_proto
from worldline.contract import DecodeTier, DeterminismTier
from worldline.errors import Conflict, NotFound
from worldline.state.codec import (
    layout_to_proto,
    manifest_to_proto,
)
from worldline.state.manifest import Fingerprint, Manifest
from worldline.v1 import (
    engine_pb2,
    engine_pb2_grpc,
    move_pb2,
)


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
