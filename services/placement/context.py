"""Context of a move: what its steps need beyond the machine's facts, for one process's life."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.placement.records import SessionRecord
from worldline.state.manifest import Manifest
from worldline.v1 import move_pb2


@dataclass(slots=True)
class MoveContext:
    """Filled by the steps as they succeed; after a restart only `session` is there again."""

    session: SessionRecord
    client_id: str = ""
    ticket: move_pb2.SignedTicket | None = None
    #: Frozen at the source; with the source's digests once pushed.
    manifest: Manifest | None = None
    sent_bytes: int = 0
    total_bytes: int = 0
    #: Called when `sent_bytes` has grown.
    on_progress: Callable[[], Awaitable[None]] | None = None

    async def note_progress(self, sent_bytes: int) -> None:
        """Bytes on the wire so far; never goes back."""
        self.sent_bytes = max(self.sent_bytes, sent_bytes)
        if self.on_progress is not None:
            await self.on_progress()
