"""Claims: what each session asks of the schedule now, from its world, contract and measured rows.

A claim's deadline is that of the release grid, or the contract's horizon where the block cannot be
late; bulk has none. A C1 world whose next action is about to come claims its time before it has
come (`Claim.prospective`), so that no quantum of another class lies across its next release. It
does so while somebody plays it, and for as long as a silence is shorter than a pause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from services.engine.core import Phase, World
from services.engine.expected import Expected
from services.engine.pace import Pace
from services.engine.quality import kept_steps
from services.engine.schedule import Claim, Guard, Ladder
from services.engine.schedule.grid import PAUSE_PERIODS
from services.engine.world import WorldModel
from worldline.contract import Contract, ServiceClass


@dataclass(frozen=True)
class Standing:
    """What the schedule must know of a session beside its world."""

    contract: Contract
    model: WorldModel
    #: What its contract and model leave to degrade, see `quality.ladder_of`.
    ladder: Ladder | None
    #: What its quanta take.
    expected: Expected
    #: Of the block in flight: quanta that are left, and when its action came.
    quanta_left: int = 0
    begun_at: float = 0.0
    #: By when somebody who waits for its end wants it.
    boundary_by: float = math.inf
    #: A client is there, and has room for one more block.
    played: bool = False
    room: bool = True
    #: Somebody reads the state at its boundary.
    held: bool = False
    #: Bulk waits, and the operator lets it have what contracts do not promise.
    gives: bool = False


def claim_of(world: World, standing: Standing, now: float, guard: Guard) -> Claim | None:
    """The world's claim, or None where it has none.

    A world in the middle of a block always has one: nothing waits for anything but its boundary.
    Between blocks it needs an action, room in its outbox and nobody who holds it for reading.
    """
    kept = _block_quanta(standing, world.pace, guard)
    if world.mid_block and world.pace.release is not None:
        return _claim(world, standing, kept)._replace(
            arrived_at=standing.begun_at,
            mid_block=True,
            quantum_s=standing.expected.next_s(standing.quanta_left),
            left_s=standing.expected.block_s(standing.quanta_left),
            boundary_by=standing.boundary_by,
        )
    if world.phase is not Phase.RUNNING or not standing.room:
        return None
    if world.pending and world.pace.release is not None:
        return _claim(world, standing, kept)._replace(
            arrived_at=world.pending[0].arrived_at, prospective=standing.held
        )
    point = _point_to_come(world, standing, now)
    if point is None:
        return None
    return _claim(world, standing, kept)._replace(
        release_at=point,
        deadline_at=point + world.pace.period_s,
        arrived_at=point,
        prospective=True,
    )


def wave_member(world: World, contract: Contract) -> tuple[str, int] | None:
    """The cohort of a world that others of it wait for, and the block it is at."""
    if not contract.cohort or world.phase in (Phase.ATTACHED, Phase.CLOSING, Phase.RELEASED):
        return None
    return contract.cohort, world.block_index


def bulk_waits(world: World, contract: Contract) -> bool:
    """Whether it is bulk with a block to do."""
    has_block = world.mid_block or (world.phase is Phase.RUNNING and bool(world.pending))
    return contract.service_class is ServiceClass.C3_BULK and has_block


def _claim(world: World, standing: Standing, kept: int) -> Claim:
    """What all claims have in common; a block of `kept` quanta that has not begun."""
    contract, pace = standing.contract, world.pace
    is_bulk = contract.service_class is ServiceClass.C3_BULK
    block_s = standing.expected.block_s(kept)
    return Claim(
        session_id=world.session_id,
        service_class=contract.service_class,
        release_at=0.0 if pace.release is None else pace.release.release_at,
        deadline_at=math.inf if is_bulk else pace.due_at,
        arrived_at=0.0,
        quantum_s=standing.expected.next_s(kept),
        left_s=block_s,
        # The blocks that follow, as long as somebody is there to ask for them.
        period_s=pace.period_s if pace.is_open and standing.played else 0.0,
        block_s=block_s,
        block_index=world.block_index,
        wave_id=contract.cohort,
    )


def _point_to_come(world: World, standing: Standing, now: float) -> float | None:
    """The release that time is kept at for an action that is about to come."""
    grid = world.pace.grid
    if grid is None or standing.contract.service_class is not ServiceClass.C1_INTERACTIVE:
        return None
    silent = now - grid.free_at > PAUSE_PERIODS * grid.period_s
    if world.pending or silent or not standing.played:
        return None
    return grid.next_point(now)


def _block_quanta(standing: Standing, pace: Pace, guard: Guard) -> int:
    """Quanta that are kept for a block that has not begun: what it would get alone here."""
    ladder = standing.ladder
    if ladder is None or not pace.history.may_degrade:
        return standing.model.quanta_per_block
    if standing.gives:
        return ladder.quanta(ladder.floor_steps)
    return ladder.quanta(kept_steps(ladder, pace.period_s, standing.expected, guard))
