"""Worlds: one actor each, that does whatever a client may do, at random, and checks every block.

All worlds are of one seed and play one script, branches draw their parent's noise: whoever moved,
forked or slept, block n is block n of the twin that never did.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.journal import Journal
from tests.oracles import BOUND_S, script, signature
from worldline.contract import Contract, ServiceClass
from worldline.errors import InvariantBroken, NotFound, WorldlineError
from worldline.park import ParkKind
from worldline.sdk import Client
from worldline.sdk.block import Block
from worldline.sdk.session import Session

SEED = 7
#: Nothing is late on two busy cores; what is late has tests of its own.
CONTRACT = Contract(service_class=ServiceClass.C1_INTERACTIVE, horizon_ms=20_000)
#: What a world is after everything that was asked of it is over.
_AT_REST = ("live", "suspended", "lost")
_AGAIN_S = 0.2
#: At which it is closed: a new one begins.
_BLOCKS_LEFT_MIN = 8
#: Losing is excused by what happened to the node up to so long before the world was last seen
#: there: a node is presumed dead, and a world lost with it, some time after it fell silent.
_EXCUSED_S = 60.0


@dataclass(frozen=True, slots=True)
class Stage:
    """What all worlds share."""

    client: Client
    journal: Journal
    twin: list[Block]
    nodes: tuple[str, ...]
    worlds_max: int


class Worlds:
    """The actors and their worlds; ends with all of them closed."""

    def __init__(self, stage: Stage, seed: int, until_s: float) -> None:
        self._stage = stage
        self._drawn = random.Random(seed)
        self._until_s = until_s
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Begin with half as many worlds as there may be; branches are the rest."""
        for _ in range(max(1, self._stage.worlds_max // 2)):
            self._start(None, 0)
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def full(self) -> bool:
        """Whether there are as many worlds as there may be."""
        return len(self._tasks) >= self._stage.worlds_max

    def adopt(self, branch: Session, next_block: int) -> None:
        """Let a branch live on its own."""
        self._start(branch, next_block)

    def _start(self, session: Session | None, next_block: int) -> None:
        seed = self._drawn.getrandbits(32)
        actor = Actor(self._stage, self, seed, self._until_s, session, next_block)
        task = asyncio.get_running_loop().create_task(actor.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Actor:
    """One world, or one after the other where it is lost or at its end."""

    def __init__(
        self,
        stage: Stage,
        worlds: Worlds,
        seed: int,
        until_s: float,
        session: Session | None,
        next_block: int,
    ) -> None:
        self._stage = stage
        self._worlds = worlds
        self._drawn = random.Random(seed)
        self._until_s = until_s
        self._session = session
        self._next = next_block
        self._seen_s = time.monotonic()
        steps: list[tuple[int, Callable[[], Awaitable[object]]]] = [
            (6, self.play),
            (5, self.move),
            (2, self.verbs),
            (2, self.give_up),
            (3, self.suspend),
            (3, self.fork),
            (1, self.close),
        ]
        self._weights = [weight for weight, _ in steps]
        self._steps = [step for _, step in steps]

    async def run(self) -> None:
        """Steps until the time is over; then play once more, undisturbed, and close."""
        try:
            while time.monotonic() < self._until_s:
                if self._session is None:
                    await self._asked("open", self.open)
                    continue
                (step,) = self._drawn.choices(self._steps, self._weights)
                if self._stage.journal.findings and self._drawn.random() < 0.5:
                    await asyncio.sleep(_AGAIN_S)  # leave the scene readable
                await self._asked(step.__name__, step)
            await self._end()
        except Exception as error:
            self._stage.journal.found(f"{self._name()}: {type(error).__name__}: {error}")

    async def _end(self) -> None:
        if self._session is not None:
            await self._settle()
        if self._session is not None:
            await self._asked("play at last", self.play)
        if self._session is not None:
            await self._asked("close", self.close)

    # --- steps -------------------------------------------------------------------------------

    async def open(self) -> None:
        client, nodes = self._stage.client, self._stage.nodes
        node = self._drawn.choice((*nodes, ""))
        session = await client.open("tiny", seed=SEED, contract=CONTRACT, node=node)
        self._session, self._next, self._seen_s = session, 0, time.monotonic()

    async def play(self) -> None:
        count = min(self._drawn.randint(1, 6), len(self._stage.twin) - self._next)
        playing = self._live().play(script(count, self._next), digests=True)
        async with contextlib.aclosing(playing) as blocks:
            async for block in blocks:
                self._check(block)

    async def move(self) -> None:
        record = await self._live().move(self._drawn.choice((*self._stage.nodes, "")))
        self._stage.journal.ended("moves ended", record.phase.name)

    async def verbs(self) -> None:
        session = self._live()
        if not (await session.admit(self._drawn.choice(self._stage.nodes))).admitted:
            return
        await session.migrate()
        if self._drawn.random() < 0.5 and not await session.verify():
            self._stage.journal.found(f"{self._name()}: staged bytes differ: {session.difference}")
        await session.commit()

    async def give_up(self) -> None:
        session = self._live()
        if not (await session.admit(self._drawn.choice(self._stage.nodes))).admitted:
            return
        if self._drawn.random() < 0.5:
            await session.migrate()
        await session.rollback()

    async def suspend(self) -> None:
        session = self._live()
        await session.suspend(self._drawn.choice((ParkKind.MEMORY, ParkKind.FILE)))
        await asyncio.sleep(self._drawn.random())
        await session.resume()

    async def fork(self) -> None:
        if self._worlds.full():
            return
        (branch,) = await self._live().fork(same_noise=True)
        forked = branch.info.forked_from
        if forked is None or forked.block_index is None:
            self._stage.journal.found(f"{self._name()}: {branch.session_id} does not say its block")
            return
        self._worlds.adopt(branch, forked.block_index)

    async def close(self) -> None:
        session, self._session = self._live(), None
        await session.close()

    # --- what comes of them ------------------------------------------------------------------

    async def _asked(self, what: str, step: Callable[[], Awaitable[object]]) -> None:
        """One step; a typed error in bounded time is an answer, everything else a finding."""
        journal = self._stage.journal
        session = self._session
        try:
            async with asyncio.timeout(2 * BOUND_S):
                await step()
            journal.ended(what, "done")
        except InvariantBroken as error:
            journal.found(f"{self._name()} {what}: {error}")
        except WorldlineError as error:
            journal.ended(what, error.reason)
            await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            journal.found(f"{self._name()} {what}: no answer within {2 * BOUND_S:.0f} s")
        if what == "close" and session is not None and self._session is None:
            await self._gone(session)
        elif self._session is not None:
            await self._settle()
            if self._session is not None and self._blocks_left() < _BLOCKS_LEFT_MIN:
                await self._asked("close", self.close)

    async def _gone(self, session: Session) -> None:
        """Until nothing of it is left; a close whose answer was lost is asked for again."""
        async with asyncio.timeout(2 * BOUND_S):
            while True:
                try:
                    await session.close()
                    return
                except WorldlineError:
                    await asyncio.sleep(_AGAIN_S)

    async def _settle(self) -> None:
        """Wait until the world is at rest, and have it live; a lost one is closed."""
        async with asyncio.timeout(2 * BOUND_S):
            while self._session is not None:
                with contextlib.suppress(WorldlineError):
                    if await self._is_live(self._session):
                        return
                await asyncio.sleep(_AGAIN_S)

    async def _is_live(self, session: Session) -> bool:
        try:
            info = await session.refresh()
        except NotFound:
            self._stage.journal.found(f"{session.session_id} is unknown and was never closed")
            self._session = None
            return False
        if info.state == "moving" and session.move_id:
            await session.rollback()  # ours, and left half way
        elif info.state == "suspended":
            await session.resume()
        elif info.state == "lost":
            await self._lost(session)
        if info.state != "live":
            return False
        self._seen_s = time.monotonic()
        return True

    async def _lost(self, session: Session) -> None:
        node_id, journal = session.info.node_id, self._stage.journal
        if not journal.troubled_since(node_id, self._seen_s - _EXCUSED_S):
            journal.found(f"{self._name()} was lost at {node_id}, to which nothing had happened")
        journal.ended("worlds", "lost")
        await session.close()
        self._session = None

    def _check(self, block: Block) -> None:
        if block.index != self._next:
            found = f"{self._name()} played block {block.index} after {self._next - 1}"
            self._stage.journal.found(found)
        elif signature(block) != signature(self._stage.twin[block.index]):
            self._stage.journal.found(f"{self._name()}: block {block.index} is not the twin's")
        self._stage.journal.blocks += 1
        self._next = block.index + 1
        self._seen_s = time.monotonic()

    def _live(self) -> Session:
        if self._session is None:
            raise NotFound("no world", reason="NO_WORLD")
        return self._session

    def _blocks_left(self) -> int:
        return len(self._stage.twin) - self._next

    def _name(self) -> str:
        return "a world" if self._session is None else self._session.session_id
