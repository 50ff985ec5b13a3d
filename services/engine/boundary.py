"""Boundary: a world that stands between two blocks: the wait for it, and what it is then."""

from __future__ import annotations

import time
from collections.abc import Callable

from services.engine.core import Phase
from services.engine.memory import Memory
from services.engine.session import Session
from services.engine.signal import wait_for_change
from worldline.errors import Conflict, DeadlineExceeded
from worldline.state.manifest import Digests, Fingerprint, Manifest

#: A block in flight must reach its boundary within this; `mg2` on a CPU takes about one second.
BOUNDARY_TIMEOUT_S = 30.0


async def boundary(session: Session) -> None:
    """Until the block in flight has ended. Held, the world begins no other one.

    Raises:
        DeadlineExceeded: it did not within `BOUNDARY_TIMEOUT_S`.
    """
    await _while(lambda: session.world.mid_block, session)


async def frozen(session: Session, move_id: str) -> None:
    """Until the freeze for that move is reached.

    Raises:
        Conflict: it was taken back meanwhile.
        DeadlineExceeded: as `boundary`.
    """

    def freezing() -> bool:
        world = session.world
        return world.phase is Phase.FREEZING and world.move_id == move_id

    await _while(freezing, session)
    check_frozen(session, move_id)


def check_frozen(session: Session, move_id: str) -> None:
    """The world stands still for that move.

    Raises:
        Conflict: it does no more.
    """
    if session.world.phase is not Phase.FROZEN or session.world.move_id != move_id:
        raise Conflict(
            f"the freeze of session {session.session_id} for move {move_id} was taken back",
            reason="FREEZE_DROPPED",
        )


def manifest_of(
    session: Session, memory: Memory, fingerprint: Fingerprint, digests: Digests | None
) -> Manifest:
    """What moves, of a world that is at a boundary and held there."""
    return Manifest(
        session_id=session.session_id,
        epoch=session.world.epoch,
        block_index=session.world.block_index,
        layout=memory.layout(),
        fingerprint=fingerprint,
        determinism_tier=session.contract.determinism_tier,
        digests=digests,
    )


async def _while(holds: Callable[[], bool], session: Session) -> None:
    deadline = time.monotonic() + BOUNDARY_TIMEOUT_S
    while holds():
        token = session.changed.token()
        if not await wait_for_change(token, deadline - time.monotonic()):
            raise DeadlineExceeded(
                f"session {session.session_id} did not reach a block boundary within "
                f"{BOUNDARY_TIMEOUT_S:g} s",
                field="session_id",
            )
