"""Session: one live world in a client's hands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from worldline.contract import Contract
from worldline.errors import Conflict, NotFound
from worldline.fields import whole
from worldline.park import ParkKind
from worldline.rpc.channel import ChannelPool
from worldline.sdk.block import Block
from worldline.sdk.calls import Caller
from worldline.sdk.fan_out import FanOut
from worldline.sdk.following import OnProgress
from worldline.sdk.fork import fork, planner_contract
from worldline.sdk.move_record import Failure, MoveRecord
from worldline.sdk.playback import Playback
from worldline.sdk.player import Actions, Player
from worldline.sdk.records import SessionInfo, session_from_proto
from worldline.sdk.route import Route
from worldline.sdk.suspension import Suspender, SuspensionRecord
from worldline.sdk.verbs import Verbs
from worldline.state.manifest import Manifest
from worldline.v1 import placement_pb2, placement_pb2_grpc
from worldline.verdict import Verdict

#: Engines keep the last eight blocks for a client that comes back (docs: the play stream).
WINDOW_MAX = 8
#: What `close` waits for.
_PASSING = ("MOVE_IN_PROGRESS", "SUSPEND_IN_PROGRESS", "RESUME_IN_PROGRESS")
#: How long a new `play` waits for the former one to let go.
_HANDOVER_S = 2.0


class Session:
    """Made by `Client.open` and `Client.session`; lives as long as its client.

    As an async context manager it closes the world at the end.
    """

    def __init__(
        self,
        info: SessionInfo,
        *,
        caller: Caller,
        channels: ChannelPool,
        placement: placement_pb2_grpc.PlacementServiceStub,
        playback: Playback | None,
        patience_s: float,
        block_timeout_s: float,
        move_timeout_s: float,
    ) -> None:
        #: Where the session was when placement was last asked.
        self.info = info
        self._caller = caller
        self._channels = channels
        self._placement = placement
        self._playback = playback
        self._route = Route(info.engine_address, patience_s, caller.policy)
        self._patience_s = patience_s
        self._block_timeout_s = block_timeout_s
        self._move_timeout_s = move_timeout_s
        self._verbs = Verbs(info.session_id, caller, placement, move_timeout_s)
        self._suspender = Suspender(info.session_id, caller, placement, move_timeout_s)
        self._one_player = asyncio.Lock()

    @property
    def session_id(self) -> str:
        """The session's name."""
        return self.info.session_id

    @property
    def epoch(self) -> int:
        """Newest epoch that this client has seen."""
        seen = self._playback.epoch if self._playback is not None else 0
        return max(seen, self.info.epoch)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def play(
        self, actions: Actions, *, digests: bool = False, frames: bool = True, window: int = 1
    ) -> AsyncGenerator[Block, None]:
        """Generate one block per action; an async iterator over them.

        Survives moves and broken connections: block indices are consecutive, none is lost, none
        comes twice. `window` is how many actions may be ahead of their blocks (up to 8).

        Raises:
            IntegrityError: blocks are gone for good (reason BLOCKS_LOST).
            Conflict: this session is being played already, here (PLAYING) or from another
                client that joined later (SUPERSEDED); or it was closed, or is suspended
                (SESSION_SUSPENDED): `resume` it, and `play` on from the next block.
            DeadlineExceeded: a block did not come in time.
            Unavailable: no engine could be joined within the client's patience.
        """
        whole(window, "window", at_least=1, at_most=WINDOW_MAX)
        await self._become_player()
        try:
            player = Player(
                session_id=self.session_id,
                caller=self._caller,
                channels=self._channels,
                playback=await self._position(),
                route=self._route,
                resolve=self._resolve,
                block_timeout_s=self._block_timeout_s,
                digests=digests,
                frames=frames,
                window=window,
            )
            async with aclosing(player.run(actions)) as blocks:
                async for block in blocks:
                    yield block
        finally:
            self._one_player.release()

    async def refresh(self) -> SessionInfo:
        """Ask placement where the session lives now."""
        return await self._resolve(self._caller.timeout_s)

    async def close(self) -> None:
        """End the world; closing it twice is no error.

        A move that this session admitted and did not finish is given up; another one is waited
        for, as long as a move may take, and so is a suspend or a resume.

        Raises:
            Conflict: MOVE_IN_PROGRESS, SUSPEND_IN_PROGRESS or RESUME_IN_PROGRESS, it took longer.
        """
        deadline_s = time.monotonic() + self._move_timeout_s
        attempt = 1
        while True:
            try:
                await self._caller.retried(
                    self._placement.CloseSession,
                    placement_pb2.CloseSessionRequest(session_id=self.session_id),
                )
                return
            except NotFound:
                return  # a retry after a lost reply, or somebody else closed it
            except Conflict as error:
                if error.reason not in _PASSING or time.monotonic() >= deadline_s:
                    raise
            await self._leave_move(self._caller.policy.backoff_s(attempt))
            attempt += 1

    async def _leave_move(self, delay_s: float) -> None:
        if not self.move_id:
            await asyncio.sleep(delay_s)
            return
        # Committed meanwhile, or forgotten: either way it is no longer in the way.
        with suppress(Conflict, NotFound):
            await self.rollback()
        self._verbs.move_id = ""

    async def register_state(self, granule_bytes: int = 0) -> Manifest:
        """Manifest of the live world at a block boundary, digests included.

        `granule_bytes` is the granule of the digests, a power of two from 128 bytes to 1 MiB; 0 is
        that of moves, 1 MiB.

        Raises:
            InvalidInput: no such granule, or the state has too many of them.
        """
        return await self._verbs.register_state(granule_bytes)

    async def admit(self, target: str = "", *, saves_ms: float = 0.0) -> Verdict:
        """May the session move to node `target` (empty: placement chooses) now?

        `saves_ms`: as in `move`.
        """
        return await self._verbs.admit(target, saves_ms=saves_ms)

    async def migrate(self, on_progress: OnProgress | None = None) -> Manifest:
        """Freeze, and stage the state at the target of the admitted move."""
        return await self._verbs.migrate(on_progress)

    async def verify(self) -> bool:
        """Whether the staged bytes equal the source's; `difference` says where not."""
        return await self._verbs.verify()

    async def commit(self) -> Manifest:
        """Let the world change hands; returns the manifest under its new epoch."""
        return await self._verbs.commit()

    async def rollback(self) -> Manifest:
        """Give the admitted move up; the source plays on."""
        return await self._verbs.rollback()

    async def move(
        self, target: str = "", on_progress: OnProgress | None = None, *, saves_ms: float = 0.0
    ) -> MoveRecord:
        """All of the verbs in one; see `MoveRecord.raise_unless_committed`.

        `saves_ms` is what the move is worth in milliseconds of standing still: one that costs more
        is rejected (SAVES_TOO_LITTLE). 0 orders it, whatever it saves. While it waits for its wire
        the world plays on; one that waited in vain is rejected (WIRE_TOO_LATE), with
        `verdict.retry_after_ms`.

        Raises:
            InvalidInput: `saves_ms` is no duration.
        """
        return await self._verbs.move(target, on_progress, saves_ms=saves_ms)

    async def suspend(self, to: ParkKind = ParkKind.MEMORY) -> SuspensionRecord | None:
        """Park the world's state, proven, and free its slot; None where it was suspended already.

        It stops at the next block boundary. A `play` under way gets the blocks that are done and
        then ends with SESSION_SUSPENDED.

        Raises:
            Conflict: it is in a move, or does not run; or the node keeps no files.
            CapacityExhausted: no room for the copy.
            IntegrityError: the copy differed, and was not kept. The world plays on.
        """
        self.info, record = await self._suspender.suspend(to)
        return record

    async def resume(self) -> SuspensionRecord | None:
        """Let the suspended world go on, in the next epoch; None where it was live already.

        Raises:
            Rejected: there is no room for it now.
            Conflict: SESSION_LOST, what had its state has ended.
            IntegrityError: the state is no longer what was parked. It stays suspended.
        """
        self.info, record = await self._suspender.resume()
        self._route.address = self.info.engine_address
        return record

    async def fork(
        self,
        count: int = 1,
        *,
        contract: Contract | None = None,
        same_noise: bool = False,
        first_branch: int | None = None,
    ) -> list[Session]:
        """Branch the world: `count` sessions on its device, copies of its state at one boundary.

        It plays on, and nobody sees what another writes. Each branch draws noise of its own, which
        follows from the parent's and the branch's number; with `same_noise` it draws the parent's,
        so that equal actions give equal blocks. `contract` None: this session's own. Numbers go on
        from fork to fork; `first_branch` asks for one again: the same state and number give the
        same branch.

        Raises:
            Rejected: there is no room for all of them; none was made.
            Conflict: the session does not live, or is in a move or a suspend.
            InvalidInput: `count` is not 1 to 64; or the model does not split its noise
                (NOISE_NOT_SPLIT).
        """
        found = await fork(
            self.session_id,
            count,
            contract=contract,
            same_noise=same_noise,
            first_branch=first_branch,
            caller=self._caller,
            placement=self._placement,
            timeout_s=self._move_timeout_s,
        )
        return [self._branch(info) for info in found]

    async def fan_out(self, count: int, *, contract: Contract | None = None) -> FanOut:
        """Branches for a planner, which plays them, prunes them and adopts one; as `fork`.

        `contract` None: this session's own, as a planner's (C2a) and at the planner's pace.
        """
        promised = planner_contract(self.info.contract) if contract is None else contract
        return FanOut(self, await self.fork(count, contract=promised))

    @property
    def move_id(self) -> str:
        """The move that `admit` began; empty where none is under way."""
        return self._verbs.move_id

    @property
    def difference(self) -> Failure | None:
        """The first leaf and granule that `verify` found different."""
        return self._verbs.difference

    def _branch(self, info: SessionInfo) -> Session:
        """A session in the hands of the same client, at the block where it branched off."""
        forked = info.forked_from
        at = None if forked is None else forked.block_index
        return Session(
            info,
            caller=self._caller,
            channels=self._channels,
            placement=self._placement,
            playback=None if at is None else Playback(at, info.epoch),
            patience_s=self._patience_s,
            block_timeout_s=self._block_timeout_s,
            move_timeout_s=self._move_timeout_s,
        )

    async def _become_player(self) -> None:
        # An iterator that was left with `break` closes a moment later, when it is collected.
        try:
            async with asyncio.timeout(_HANDOVER_S):
                await self._one_player.acquire()
        except TimeoutError:
            raise Conflict("the session is being played already", reason="PLAYING") from None

    async def _position(self) -> Playback:
        """Where to play on; a session that another client opened is joined at its present block."""
        if self._playback is None:
            manifest = await self.register_state()
            self._playback = Playback(manifest.block_index, manifest.epoch)
        return self._playback

    async def _resolve(self, timeout_s: float) -> SessionInfo:
        response = await self._caller.retried(
            self._placement.ResolveSession,
            placement_pb2.ResolveSessionRequest(session_id=self.session_id),
            timeout_s=timeout_s,
        )
        self.info = session_from_proto(response.session)
        return self.info
