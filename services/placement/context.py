"""Context of a move: what its steps need beyond the machine's facts, for one process's life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from services.placement.records import SessionRecord
from services.placement.targets import Target
from worldline.rpc.push import PushCall
from worldline.state.manifest import Manifest
from worldline.v1 import move_pb2, mover_pb2


@dataclass(slots=True)
class MoveContext:
    """Filled by the steps as they succeed; after a restart only `session` is there again."""

    session: SessionRecord
    client_id: str = ""
    #: What admission may choose from, best first.
    targets: tuple[Target, ...] = ()
    #: What the move is worth, in milliseconds of what a move costs; 0: it is ordered.
    saves_ms: float = 0.0
    #: How long it may wait for its wire where nobody waits for it; 0: somebody does.
    bulk_wait_ms: float = 0.0
    #: The span in which its session was opened, a traceparent; empty where it is not known.
    opened_in: str = ""
    #: The engine that admission has chosen: from then on, for as long as the move may commit, who
    #: else wants to be there is held against its session's period (`OpenMoves.coming_to`).
    room_at: str = ""
    ticket: move_pb2.SignedTicket | None = None
    #: When the ticket came, on the loop's clock; None where this process did not see it come.
    ticket_at_s: float | None = None
    #: Armed before the freeze; lives until the push has ended or the move has.
    push: PushCall | None = None
    #: The verification that was asked for beside the push.
    verifying: asyncio.Task[mover_pb2.VerifyResponse] | None = None
    #: Frozen at the source; with the source's digests once pushed.
    manifest: Manifest | None = None
    sent_bytes: int = 0
    total_bytes: int = 0
    #: Called when `sent_bytes` has grown.
    on_progress: Callable[[], None] | None = None

    async def drop_push(self) -> None:
        """End the push, if one is under way: the movers give up what they hold for it."""
        push, self.push = self.push, None
        if push is not None:
            await push.close()

    async def drop_verifying(self) -> None:
        """Wait for it no longer, if it is under way."""
        verifying, self.verifying = self.verifying, None
        if verifying is not None:
            verifying.cancel()
            await asyncio.gather(verifying, return_exceptions=True)

    def note_progress(self, sent_bytes: int) -> None:
        """Bytes on the wire so far; never goes back."""
        self.sent_bytes = max(self.sent_bytes, sent_bytes)
        if self.on_progress is not None:
            self.on_progress()
