"""Film: a session that is played by a script while it is moved; and its twin that stays."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from worldline.cli.moves import ProgressView
from worldline.errors import DeadlineExceeded
from worldline.sdk import Action, Block, MoveRecord, Session

#: Blocks before the first move, and on each owner after it.
_BLOCKS_PER_OWNER = 4
#: A move that takes longer than this many blocks is stuck.
_BLOCKS_MAX = 2_000
_KEYS = ("W", "WD", "D", "WA", "A", "S")


@dataclass(slots=True)
class Take:
    """What the client saw, and the moves that happened meanwhile."""

    blocks: list[Block] = field(default_factory=list)
    records: list[MoveRecord] = field(default_factory=list)


def scripted(block_index: int) -> Action:
    """The same action for the same block, whoever plays: walks and turns."""
    keys = _KEYS[block_index // 3 % len(_KEYS)]
    return Action.keys(keys, mouse_dx=0.5 * math.sin(block_index / 5.0))


class Film:
    """Plays without a pause until all moves are made and played on after."""

    def __init__(self, session: Session, *, say: Callable[[str], None] | None = None) -> None:
        self._session = session
        self._quiet = say is None
        self._say = say or (lambda _text: None)
        self._take = Take()
        self._news = asyncio.Condition()
        self._over = False

    async def shoot(self, targets: Sequence[str]) -> Take:
        """Move to each target in turn, a few blocks apart, while the world plays.

        A move that does not commit ends the film early; the take has its record.

        Raises:
            WorldlineError: the play or a move failed.
        """
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._play())
                group.create_task(self._direct(targets))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return self._take

    async def _play(self) -> None:
        async for block in self._session.play(self._actions(), digests=True):
            async with self._news:
                self._take.blocks.append(block)
                self._news.notify_all()

    async def _actions(self) -> AsyncIterator[Action]:
        for block_index in range(_BLOCKS_MAX):
            if self._over:
                return
            yield scripted(block_index)
        raise DeadlineExceeded(
            f"the moves did not end within {_BLOCKS_MAX} blocks", reason="FILM_TOO_LONG"
        )

    async def _direct(self, targets: Sequence[str]) -> None:
        try:
            await self._more_blocks(_BLOCKS_PER_OWNER)
            for target in targets:
                self._say(f"moving to {target} after block {self._take.blocks[-1].index}")
                with ProgressView(quiet=self._quiet) as view:
                    record = await self._session.move(target, view.show)
                self._take.records.append(record)
                if not record.committed:
                    return
                self._say(f"{target} owns it from epoch {record.source_epoch + 1} on")
                await self._blocks_of(record.source_epoch + 1, _BLOCKS_PER_OWNER)
        finally:
            self._over = True

    async def _more_blocks(self, count: int) -> None:
        wanted = len(self._take.blocks) + count
        async with self._news:
            await self._news.wait_for(lambda: len(self._take.blocks) >= wanted)

    async def _blocks_of(self, epoch: int, count: int) -> None:
        async with self._news:
            await self._news.wait_for(
                lambda: sum(block.epoch >= epoch for block in self._take.blocks) >= count
            )


async def play_twin(session: Session, count: int) -> list[Block]:
    """The same script, `count` blocks, in one place."""
    actions = (scripted(block_index) for block_index in range(count))
    return [block async for block in session.play(actions, digests=True)]
