"""Measuring: a few pushes between two nodes that take little, and never before anybody else.

Each is a probe of admission's: it is refused while a move holds or waits for either wire, and gives
way like bulk. Admission learns from those that are large enough to say something about the rate.
"""

from __future__ import annotations

import asyncio

from services.placement.fleet import Fleet
from services.placement.probe import Probe, ProbeWish
from services.placement.records import NodeRecord
from services.placement.runtime import Runtime
from services.placement.targets import Target
from services.placement.values import Party
from worldline.contract import HORIZON_MS_MAX, Contract, ServiceClass
from worldline.errors import CapacityExhausted, DeadlineExceeded, InvalidInput
from worldline.state.manifest import Fingerprint
from worldline.v1 import doctor_pb2, move_pb2
from worldline.verdict import RejectReason, Verdict, verdict_to_proto

#: A page: all of its time is what a push pays besides its bytes.
TINY_BYTES = 4096
TINY_COUNT = 3
#: Tells how large a push the time allows.
FIRST_BYTES = 1 << 20
LARGE_COUNT = 3
#: A larger push is worth its time from here on.
_WORTH_BYTES = 4 << 20
#: Beyond what was asked for, for the push that is under way.
_SLACK_S = 20.0
_CLIENT = "doctor"
_CONTRACT = Contract(service_class=ServiceClass.C5_MAINTENANCE, horizon_ms=HORIZON_MS_MAX)


def large_bytes(push_bytes_max: int, rate_bytes_per_s: float, left_s: float) -> int:
    """The size of which `LARGE_COUNT` fit into the time, in whole mebibytes; 0: none does. Pure."""
    fitting = int(rate_bytes_per_s * max(0.0, left_s) / LARGE_COUNT)
    size = min(push_bytes_max, fitting) >> 20 << 20
    return size if size >= min(_WORTH_BYTES, push_bytes_max) else 0


class Measuring:
    """Measures one path at a time for each caller. Holds nothing between calls."""

    def __init__(self, runtime: Runtime, fleet: Fleet, probe: Probe) -> None:
        self._runtime = runtime
        self._fleet = fleet
        self._probe = probe

    async def measure(
        self, source_node_id: str, target_node_id: str, *, push_bytes_max: int, within_s: float
    ) -> doctor_pb2.MeasurePathResponse:
        """Small pushes, then large ones while there is time.

        Raises:
            InvalidInput: from a node to itself. NotFound: no such node.
            WorldlineError: a push failed; nothing of it is left.
        """
        if source_node_id == target_node_id:
            raise InvalidInput(
                f"a path leads from one node to another, not from {source_node_id} to itself",
                field="target_node_id",
            )
        wish = await self._wish(source_node_id, target_node_id)
        answer = doctor_pb2.MeasurePathResponse(
            source_device=wish.source_device, target_device=wish.target_device
        )
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        try:
            # What is late is withdrawn by its own deadlines; this one is for whoever waits.
            async with asyncio.timeout_at(until_s + _SLACK_S):
                await self._pushes(
                    wish, min(push_bytes_max, wish.slot_bytes), answer, until_s=until_s
                )
        except TimeoutError:
            raise DeadlineExceeded(
                f"a push from {source_node_id} to {target_node_id} did not end within "
                f"{within_s + _SLACK_S:g} s: one of the two does not answer"
            ) from None
        return answer

    async def _pushes(
        self,
        wish: ProbeWish,
        bytes_max: int,
        answer: doctor_pb2.MeasurePathResponse,
        *,
        until_s: float,
    ) -> None:
        now = asyncio.get_running_loop().time
        # Of less than admission's own probes push it would take set-up for the rate.
        says_something = min(FIRST_BYTES, wish.slot_bytes)
        for size in (TINY_BYTES,) * TINY_COUNT + (FIRST_BYTES,):
            size_bytes = min(size, bytes_max)
            if not await self._push(wish, size_bytes, answer, learn=size_bytes >= says_something):
                return
        first = answer.pushes[-1]
        rate = first.wire_bytes / max(first.wire_ms, 1e-3) * 1e3
        size_bytes = large_bytes(bytes_max, rate, until_s - now())
        for _ in range(LARGE_COUNT if size_bytes > FIRST_BYTES else 0):
            if now() >= until_s or not await self._push(wish, size_bytes, answer, learn=True):
                break

    async def _push(
        self,
        wish: ProbeWish,
        size_bytes: int,
        answer: doctor_pb2.MeasurePathResponse,
        *,
        learn: bool,
    ) -> bool:
        """One push into the answer; False: refused, and the answer says why."""
        try:
            pushed = await self._probe.push(wish, size_bytes, learn=learn)
        except CapacityExhausted as error:
            pushed = Verdict.reject(RejectReason.TARGET_FULL, error.message)
        if isinstance(pushed, move_pb2.PushStats):
            answer.pushes.append(pushed)
            return True
        answer.refused.CopyFrom(verdict_to_proto(pushed))
        return False

    async def _wish(self, source_node_id: str, target_node_id: str) -> ProbeWish:
        source = self._fleet.node(source_node_id, "source_node_id")
        target = self._fleet.node(target_node_id, "target_node_id")
        return ProbeWish(
            source_node_id=source_node_id,
            target=await self._target(target),
            contract=_CONTRACT,
            fingerprint=Fingerprint.of({}),  # of bytes that no engine will see
            slot_bytes=min(source.devices[0].slot_bytes, target.devices[0].slot_bytes),
            source_device=source.devices[0].name,
            target_device=target.devices[0].name,
            client_id=_CLIENT,
        )

    async def _target(self, node: NodeRecord) -> Target:
        """The node's first device, with an engine or without."""
        device = node.devices[0]
        now = asyncio.get_running_loop().time()
        moves = self._runtime.open_move_tasks()
        candidates = self._fleet.candidates(await self._runtime.sessions(), moves, now)
        free = [
            one.slots_for_moves
            for one in candidates
            if one.node_id == node.node_id and one.device == device.name
        ]
        return Target(
            party=Party("", "", node.node_id, node.incarnation),
            host_id=node.host_id,
            slots_free=free[0] if free else device.slots_total,
            digest_rate_bytes_per_s=device.digest_rate_bytes_per_s,
        )
