"""Parked copies of an in-test mover: what Park, Unpark and DropParked promise, in a dictionary."""

# gRPC names its methods.
# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from worldline.errors import Conflict, NotFound
from worldline.state.codec import digests_to_proto
from worldline.state.manifest import Digests
from worldline.v1 import manifest_pb2, move_pb2, park_pb2


class ParkedCopies:
    """Mixed into `FakeMover`, whose slots it reads and takes."""

    name: str
    slots: dict[tuple[int, int], tuple[str, str]]
    allocate: Callable[[str, str], move_pb2.SlotRef]
    _do: Callable[[str, Callable[[], Any]], Any]
    digests: Digests

    def __init__(self) -> None:
        #: By park id: session, kind, and the manifest as it was parked.
        self.parked: dict[str, tuple[str, int, manifest_pb2.Manifest]] = {}

    async def Park(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            key = (request.slot.slot_index, request.slot.generation)
            session_id = request.manifest.session_id
            if self.slots.get(key) != (session_id, "live"):
                raise Conflict("not a live slot of the session")
            manifest = manifest_pb2.Manifest()
            manifest.CopyFrom(request.manifest)
            manifest.digests.CopyFrom(digests_to_proto(self.digests))
            self.parked[request.park_id] = (session_id, request.kind, manifest)
            return park_pb2.ParkResponse(
                digests=manifest.digests,
                stats=park_pb2.ParkStats(copied_bytes=2048, copy_ms=1.0),
            )

        return await self._do("Park", work)

    async def Unpark(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            if request.park_id not in self.parked:
                raise NotFound("no such copy", reason="PARKED_UNKNOWN")
            session_id, _, manifest = self.parked[request.park_id]
            assert session_id == request.session_id
            return park_pb2.UnparkResponse(
                slot=self.allocate(session_id, "live"), manifest=manifest
            )

        return await self._do("Unpark", work)

    async def DropParked(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            gone = self.parked.pop(request.park_id, None)
            return park_pb2.DropParkedResponse(dropped=gone is not None)

        return await self._do("DropParked", work)
