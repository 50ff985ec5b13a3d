"""Verifying: a move's read-back at its target, asked for beside the push.

The target's mover knows before anybody else that everything has landed. To be told so by way of the
source, and to ask then, would be three calls while the world stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from services.placement.context import MoveContext
from services.placement.move import Move
from services.placement.peers import Deadlines, Peers
from services.placement.persistence import PEER_SILENT
from services.placement.phases import Goal
from services.placement.values import Party
from worldline.errors import WorldlineError
from worldline.rpc.channel import call
from worldline.state.codec import manifest_to_proto
from worldline.state.manifest import Manifest
from worldline.v1 import mover_pb2

_ATTEMPTS = 3

Answer = mover_pb2.VerifyResponse


class Ask(Protocol):
    """Makes an idempotent call while the party's processes live."""

    def __call__(
        self, party: Party, make: Callable[[], Awaitable[Answer]], attempts: int
    ) -> Awaitable[Answer]:
        """The answer."""


class Verifying:
    """Asks the targets' movers to verify."""

    def __init__(self, ask: Ask, peers: Peers, deadlines: Deadlines) -> None:
        self._ask = ask
        self._peers = peers
        self._deadlines = deadlines

    def begin(self, move: Move, manifest: Manifest, push_s: float) -> asyncio.Task[Answer]:
        """Have the target verify as soon as everything has landed, within `push_s` from now.

        The manifest has no digests yet: the source's are in its seal. What the target finds is
        compared with what the source's mover says all the same.
        """
        request = mover_pb2.VerifyRequest(
            reservation_id=move.reservation_id,
            manifest=manifest_to_proto(manifest),
            promote=True,
            landing=True,
        )
        asking = self._verify(move, request, push_s + self._deadlines.verify_s, attempts=1)
        return asyncio.create_task(asking, name=f"move {move.move_id} verify the landing")

    async def answer(self, move: Move, context: MoveContext, manifest: Manifest) -> Answer:
        """What comes of the verification beside the push; where nothing does, it is made anew.

        Raises:
            WorldlineError: it could not be made.
        """
        verifying, attempts = context.verifying, _ATTEMPTS
        if verifying is not None:
            try:
                return await asyncio.wait_for(verifying, self._deadlines.verify_s)
            except TimeoutError:
                pass
            except WorldlineError as error:
                if error.reason == PEER_SILENT:
                    raise  # it was waited for long enough
            finally:
                await context.drop_verifying()
            attempts -= 1
        request = mover_pb2.VerifyRequest(
            reservation_id=move.reservation_id,
            manifest=manifest_to_proto(manifest),
            promote=move.goal is Goal.COMMIT,
        )
        return await self._verify(move, request, self._deadlines.verify_s, attempts)

    async def _verify(
        self, move: Move, request: mover_pb2.VerifyRequest, timeout_s: float, attempts: int
    ) -> Answer:
        mover = move.target.node_id
        return await self._ask(
            move.target,
            lambda: call(self._peers.mover(mover).Verify, request, timeout_s=timeout_s),
            attempts,
        )
