"""Fan-out: branches of a session that a planner plays side by side, prunes, and adopts one of.

The session that was branched waits, at the block where it was. Adopting a branch is closing what it
was chosen over: the other branches, and the session itself (docs/decisions).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from worldline.errors import InvalidInput
from worldline.sdk.block import Block
from worldline.sdk.player import Actions

if TYPE_CHECKING:
    from worldline.sdk.session import Session


class FanOut:
    """Made by `Session.fan_out`. An async context manager: what is left at its end is closed, but
    for the session itself, or for the branch that was adopted in its place.
    """

    def __init__(self, session: Session, branches: Sequence[Session]) -> None:
        self._session = session
        self._branches = list(branches)

    @property
    def session(self) -> Session:
        """The session that was branched."""
        return self._session

    @property
    def branches(self) -> tuple[Session, ...]:
        """Those that are neither pruned nor adopted, by number."""
        return tuple(self._branches)

    async def __aenter__(self) -> FanOut:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.prune(*self._branches)

    async def play(
        self,
        actions: Sequence[Actions],
        *,
        digests: bool = False,
        frames: bool = True,
        window: int = 1,
    ) -> list[list[Block]]:
        """Play every branch at once, each with actions of its own; their blocks, by branch.

        Raises:
            InvalidInput: not as many scripts as branches.
            WorldlineError: as `Session.play`; the other branches stop where they are.
        """
        if len(actions) != len(self._branches):
            raise InvalidInput(
                f"actions for {len(actions)} branches: there are {len(self._branches)}",
                field="actions",
            )

        async def one(branch: Session, script: Actions) -> list[Block]:
            stream = branch.play(script, digests=digests, frames=frames, window=window)
            return [block async for block in stream]

        pairs = zip(self._branches, actions, strict=True)
        tasks = [asyncio.ensure_future(one(branch, script)) for branch, script in pairs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def prune(self, *branches: Session) -> None:
        """Close branches: their slots are free again. One that cannot be closed stops none.

        Raises:
            InvalidInput: one that is none of `branches`.
            WorldlineError: the first that could not be closed, once all were tried.
        """
        for branch in branches:
            self._check(branch)
        ended = await asyncio.gather(
            *(branch.close() for branch in branches), return_exceptions=True
        )
        failed = None
        for branch, error in zip(branches, ended, strict=True):
            if error is None:
                self._branches.remove(branch)
            else:
                failed = failed or error
        if failed is not None:
            raise failed

    async def adopt(self, branch: Session) -> Session:
        """Go on with a branch instead of the session; returns the branch.

        The branch is out of every prune's reach before anything else is closed, so that whatever
        fails here, it lives.

        Raises:
            InvalidInput: it is none of `branches`.
            WorldlineError: something else could not be closed; the branch is adopted all the same.
        """
        self._check(branch)
        self._branches.remove(branch)
        chosen_over = self._session
        self._session = branch
        try:
            await self.prune(*self._branches)
        finally:
            await chosen_over.close()
        return branch

    def _check(self, branch: Session) -> None:
        if branch not in self._branches:
            known = ", ".join(one.session_id for one in self._branches) or "none"
            raise InvalidInput(
                f"{branch.session_id} is no branch that is left here; there are: {known}",
                field="branch",
            )
