"""Push: a client's half of a Push call, in its two phases.

Placement arms a push before the freeze and lets it go after; a probe does both at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from worldline.errors import InvariantBroken
from worldline.rpc.duplex import Duplex
from worldline.state.codec import scalars_to_proto
from worldline.state.layout import Layout
from worldline.v1 import mover_pb2, mover_pb2_grpc

__all__ = ["PushCall"]


class PushCall:
    """One push at its source's mover. Close it whatever happened: the movers then give up."""

    def __init__(
        self,
        mover: mover_pb2_grpc.MoverServiceStub,
        order: mover_pb2.PushOrder,
        timeout_s: float,
    ) -> None:
        """`timeout_s` bounds the whole call."""
        self._order = order
        self._stream = Duplex(mover.Push(timeout=timeout_s))

    async def arm(self) -> None:
        """Send the order; return once both movers are ready for the go.

        Raises:
            WorldlineError: why not.
        """
        await self._stream.write(mover_pb2.PushRequest(order=self._order))
        response = await self._read()
        if response.WhichOneof("event") != "armed":
            raise InvariantBroken("the source mover answered an order with something else")

    async def check(self) -> None:
        """Whether an armed push may still go.

        Raises:
            WorldlineError: why the movers gave it up.
        """
        if self._stream.ended:
            await self._read()

    async def go(self, block_index: int, layout: Layout) -> None:
        """The state is frozen: let the bytes go. `layout` has the frozen scalars."""
        go = mover_pb2.PushGo(block_index=block_index, scalars=scalars_to_proto(layout))
        await self._stream.write(mover_pb2.PushRequest(go=go))

    async def outcome(
        self, on_progress: Callable[[int], Any] | None = None
    ) -> mover_pb2.PushOutcome:
        """Wait for the end; `on_progress` (plain or async) gets the bytes sent so far.

        Raises:
            WorldlineError: why the push failed.
        """
        while True:
            response = await self._read()
            if response.WhichOneof("event") == "outcome":
                return response.outcome
            if on_progress is not None:
                answer = on_progress(response.progress.sent_bytes)
                if inspect.isawaitable(answer):
                    await answer

    async def close(self) -> None:
        """End the call; idempotent."""
        await self._stream.close()

    async def _read(self) -> mover_pb2.PushResponse:
        response: mover_pb2.PushResponse | None = await self._stream.read()
        if response is None:
            raise InvariantBroken("the source mover ended a push without an outcome")
        return response
