"""Membership: keeps this node alive in placement's directory, and obeys it about orphans."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from pathlib import Path

import structlog

from services.mover.devices import Device
from services.mover.digestrate import measured_digest_rate
from services.mover.runtime import MoverRuntime
from services.mover.slots import SlotRole, SlotState, ref_from_proto, ref_to_proto
from worldline.devicename import CPU
from worldline.errors import NotFound, Unavailable, WorldlineError
from worldline.rpc.channel import PROTOCOL_VERSION, call
from worldline.v1 import move_pb2, placement_pb2, placement_pb2_grpc

_log = structlog.get_logger(__name__)

_CALL_S = 3.0
_RETRY_S = 0.2


def host_id() -> str:
    """This machine, the same in all its containers: the kernel's boot id (random(4))."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class Membership:
    """One registration, renewed three times per lease."""

    def __init__(self, runtime: MoverRuntime, address: str) -> None:
        self._runtime = runtime
        self._address = address
        self._incarnation = uuid.uuid4().hex
        self._lease_s = 0.0
        self._digest_rate_bytes_per_s = 0.0
        self._renewing: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Register, retrying while placement is not there yet.

        Raises:
            Unavailable: not within `register_within_s`.
            WorldlineError: placement refused.
        """
        settings = self._runtime.settings
        if any(device.name == CPU for device in self._runtime.devices):
            self._digest_rate_bytes_per_s = await measured_digest_rate(
                self._runtime.pool, settings.digest_threads
            )
        give_up_at = self._runtime.now() + settings.register_within_s
        while True:
            try:
                await self._register()
                break
            except Unavailable as error:
                if self._runtime.now() >= give_up_at:
                    raise Unavailable(
                        f"placement at {settings.placement_address} does not answer: "
                        f"{error.message}",
                        field="placement_address",
                    ) from error
                await asyncio.sleep(_RETRY_S)
        self._renewing = asyncio.create_task(self._renew_forever(), name="renew-node")

    @property
    def loops(self) -> tuple[asyncio.Task[None], ...]:
        """What runs from join to leave and must not end before."""
        return () if self._renewing is None else (self._renewing,)

    async def leave(self) -> None:
        """Stop renewing; the directory notices when the lease runs out."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    def _stub(self) -> placement_pb2_grpc.PlacementServiceStub:
        stub = placement_pb2_grpc.PlacementServiceStub
        return self._runtime.channels.stub(stub, self._runtime.settings.placement_address)

    async def _register(self) -> None:
        settings = self._runtime.settings
        request = placement_pb2.RegisterNodeRequest(
            protocol_version=PROTOCOL_VERSION,
            node_id=settings.node_id,
            mover_address=self._address,
            incarnation=self._incarnation,
            host_id=host_id(),
            devices=[self._device(device) for device in self._runtime.devices],
        )
        answer = await call(self._stub().RegisterNode, request, timeout_s=_CALL_S)
        self._lease_s = max(0.1, answer.lease_ms / 1e3)

    def _device(self, device: Device) -> placement_pb2.Device:
        shelf = self._runtime.slots.shelf(device.name)
        return placement_pb2.Device(
            name=device.name,
            uuid=device.uuid,
            slots_total=shelf.slot_count,
            slot_bytes=shelf.slot_bytes,
            numa_node=device.numa_node,
            nvlink_peers=device.nvlink_peers,
            pcie_peers=device.pcie_peers,
            # A GPU digests by itself, whatever the host does.
            digest_rate_bytes_per_s=self._digest_rate_bytes_per_s if device.name == CPU else 0.0,
        )

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._renew()
            except NotFound:
                # Placement lost its directory, or another node took the name and went.
                with contextlib.suppress(WorldlineError):
                    await self._register()
            except WorldlineError as error:
                _log.warning("membership.renewal_failed", reason=error.reason, why=error.message)

    async def _renew(self) -> None:
        runtime = self._runtime
        now = runtime.now()
        uses = [
            placement_pb2.RenewNodeRequest.SlotUse(
                slot=ref_to_proto(state.ref),
                role=move_pb2.SlotRole.Name(state.role),
                session_id=state.session_id,
                age_ms=round((now - state.since) * 1e3),
                device=state.device,
                gives_way=_gives_way(state, now, runtime.settings.probe_gives_way_within_s),
            )
            for state in runtime.slots.states()
            if state.role is not SlotRole.FREE
        ]
        request = placement_pb2.RenewNodeRequest(
            node_id=runtime.node_id,
            incarnation=self._incarnation,
            slots=uses,
            parked=runtime.parking.listing(),
        )
        # An answer later than the lease would keep nothing alive.
        answer = await call(self._stub().RenewNode, request, timeout_s=min(_CALL_S, self._lease_s))
        self._lease_s = max(0.1, answer.lease_ms / 1e3)
        for orphan in answer.orphans:
            with contextlib.suppress(WorldlineError):
                released = runtime.release(ref_from_proto(orphan, "orphan"), None)
                _log.info("membership.orphan_released", slot=orphan.slot_index, done=released)
        for name in answer.parked_orphans:
            with contextlib.suppress(WorldlineError):
                dropped = await runtime.parking.drop_orphan(name)
                _log.info("membership.parked_orphan_dropped", park_id=name, done=dropped)


def _gives_way(state: SlotState, now: float, within_s: float) -> bool:
    """Whether who needs that slot would have it in time: a probe's that has ended and is not quiet
    yet may never be.
    """
    overdue = state.role is SlotRole.QUARANTINED and now - state.since >= within_s
    return state.gives_way and not overdue
