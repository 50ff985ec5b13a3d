"""Viewer: plays a world by the demo's script, block after block, while others do things to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from worldline.cli.film import scripted
from worldline.errors import DeadlineExceeded
from worldline.sdk import Action, Block, Session

#: Worlds stand still while a move has their wire; on busy machines everything takes longer.
_PATIENCE_S = 180.0


class Viewer:
    """An async context manager: plays inside, has stopped outside."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.blocks: list[Block] = []
        self._over = False
        self._news = asyncio.Condition()
        self._playing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Viewer:
        self._playing = asyncio.create_task(self._play(), name="viewer")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over = True
        if self._playing is None:
            return
        if kind is not None:
            self._playing.cancel()
        results = await asyncio.gather(self._playing, return_exceptions=True)
        if kind is None and isinstance(results[0], BaseException):
            raise results[0]

    async def more(self, count: int, epoch: int = 0) -> None:
        """Until `count` further blocks came, of that epoch or later.

        Raises:
            DeadlineExceeded: they did not.
            WorldlineError: why the play ended.
        """
        wanted = sum(block.epoch >= epoch for block in self.blocks) + count

        def there() -> bool:
            return sum(block.epoch >= epoch for block in self.blocks) >= wanted or self._ended

        try:
            async with asyncio.timeout(_PATIENCE_S), self._news:
                await self._news.wait_for(there)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{count} blocks did not come within {_PATIENCE_S:g} s, the last was "
                f"{self.blocks[-1].index if self.blocks else 'none'}"
            ) from None
        if self._ended and self._playing is not None:
            self._playing.result()

    @property
    def _ended(self) -> bool:
        return self._playing is not None and self._playing.done()

    async def _play(self) -> None:
        try:
            async for block in self.session.play(self._actions(), digests=True):
                async with self._news:
                    self.blocks.append(block)
                    self._news.notify_all()
        finally:
            self._over = True
            async with self._news:
                self._news.notify_all()

    async def _actions(self) -> AsyncIterator[Action]:
        block_index = 0
        while not self._over:
            yield scripted(block_index)
            block_index += 1
