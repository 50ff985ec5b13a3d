"""Block counts: how blocks kept to their contracts, added up over what engines say. Pure.

An engine counts a world's blocks from when the world came to it, so that a session that moves or
resumes begins anew there: here stays are added. Nothing is decided by it.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from worldline.v1 import placement_pb2

#: Sessions that are remembered, those told of last: about as many as live.
SESSIONS_MAX = 65_536


class BlockCounts(NamedTuple):
    """Blocks done; those degraded, those late, and the releases that passed without one."""

    blocks: int = 0
    degraded_blocks: int = 0
    releases_skipped: int = 0
    missed_periods: int = 0

    def plus(self, other: BlockCounts) -> BlockCounts:
        """Both together."""
        return BlockCounts(*(one + another for one, another in zip(self, other, strict=True)))

    def since(self, before: BlockCounts) -> BlockCounts:
        """What came to these since `before`; all of them where they have begun anew."""
        grown = [one - another for one, another in zip(self, before, strict=True)]
        return self if min(grown) < 0 else BlockCounts(*grown)

    def to_proto(self) -> placement_pb2.BlockCounts:
        """The wire form."""
        return placement_pb2.BlockCounts(**self._asdict())


NONE = BlockCounts()


class _Stay(NamedTuple):
    """A session at one engine in one epoch: what that said last."""

    engine_id: str
    epoch: int
    counts: BlockCounts


class BlockCountBook:
    """Counts of every session over its stays, and of every engine over its sessions."""

    def __init__(self) -> None:
        self._stays: OrderedDict[str, _Stay] = OrderedDict()
        self._sessions: dict[str, BlockCounts] = {}
        self._engines: defaultdict[str, BlockCounts] = defaultdict(BlockCounts)

    def note(
        self, engine_id: str, running: Iterable[placement_pb2.RenewEngineRequest.RunningWorld]
    ) -> None:
        """What an engine says of all worlds that it has."""
        for world in running:
            self._note(world.session_id, _Stay(engine_id, world.epoch, _parsed(world.block_counts)))
        while len(self._stays) > SESSIONS_MAX:
            session_id, _ = self._stays.popitem(last=False)
            del self._sessions[session_id]

    def _note(self, session_id: str, stay: _Stay) -> None:
        before = self._stays.get(session_id)
        if before is not None and stay.epoch < before.epoch:
            return  # whom it has left has not let go of it yet
        same = before is not None and before[:2] == stay[:2]
        news = stay.counts.since(before.counts) if before is not None and same else stay.counts
        self._stays[session_id] = stay
        self._stays.move_to_end(session_id)
        self._sessions[session_id] = self._sessions.get(session_id, NONE).plus(news)
        self._engines[stay.engine_id] = self._engines[stay.engine_id].plus(news)

    def of_session(self, session_id: str) -> BlockCounts | None:
        """Over all its stays; None where no engine has told of it."""
        return self._sessions.get(session_id)

    def of_engine(self, engine_id: str) -> BlockCounts:
        """Over all sessions that it had."""
        return self._engines.get(engine_id, NONE)


def _parsed(message: placement_pb2.BlockCounts) -> BlockCounts:
    return BlockCounts(*(getattr(message, name) for name in BlockCounts._fields))
