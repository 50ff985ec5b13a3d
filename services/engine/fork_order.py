"""Fork order: which branches of which world are asked for, and whether it can have them now. Pure.

A fork needs its parent to stand at a block boundary and to be this engine's. It does not need it to
be idle: a block in flight is waited for, and a freeze that comes meanwhile finds the same state. A
world that is frozen already, or on its way in or out, is somebody else's business first.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.core import Phase, World
from services.engine.world import SplitsNoise, WorldModel
from worldline.contract import Contract, contract_from_proto
from worldline.errors import Conflict, Fenced, InvalidInput
from worldline.fields import identifier, whole
from worldline.v1 import engine_pb2

#: Of one order. Each takes a slot, so a device has room for far fewer.
BRANCHES_MAX = 64
BRANCH_NUMBER_MAX = 2**32 - 1
#: A world in these has a boundary ahead that is its own.
_FORKABLE = (Phase.RUNNING, Phase.GENERATING)
#: A world that is held stands in these at a boundary, whatever came while it was copied.
_STANDING = (Phase.RUNNING, Phase.FROZEN)


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch: the session that it becomes, in which epoch, and which stream of noise it has.

    Raises:
        InvalidInput: no id, or a number out of range.
    """

    session_id: str
    epoch: int
    number: int

    def __post_init__(self) -> None:
        identifier(self.session_id, "branches.session_id")
        whole(self.epoch, "branches.epoch", at_least=1)
        whole(self.number, "branches.number", at_most=BRANCH_NUMBER_MAX)


@dataclass(frozen=True, slots=True)
class ForkOrder:
    """Branches of one world, all under one contract.

    Raises:
        InvalidInput: none, too many, or two of one name or number.
    """

    session_id: str
    epoch: int
    contract: Contract
    branches: tuple[Branch, ...]
    same_noise: bool = False

    def __post_init__(self) -> None:
        identifier(self.session_id, "session_id")
        whole(self.epoch, "epoch", at_least=1)
        whole(len(self.branches), "branches", at_least=1, at_most=BRANCHES_MAX)
        names = {self.session_id, *(one.session_id for one in self.branches)}
        if len(names) <= len(self.branches):
            raise InvalidInput("two branches have one name", field="branches.session_id")
        if len({one.number for one in self.branches}) < len(self.branches):
            raise InvalidInput("two branches have one number", field="branches.number")


def order_from_proto(message: engine_pb2.ForkWorldRequest) -> ForkOrder:
    """Parse once, at the edge.

    Raises:
        InvalidInput: with the field.
    """
    return ForkOrder(
        session_id=message.session_id,
        epoch=message.epoch,
        contract=contract_from_proto(message.contract),
        branches=tuple(Branch(one.session_id, one.epoch, one.number) for one in message.branches),
        same_noise=message.same_noise,
    )


def check_forkable(world: World, epoch: int) -> None:
    """Whether the world can be forked, at its next boundary.

    Raises:
        Fenced: the order speaks for an epoch that is not the world's.
        Conflict: it is frozen, arriving or ending.
    """
    _check_epoch(world, epoch)
    if world.phase not in _FORKABLE:
        raise Conflict(
            f"session {world.session_id} is {world.phase}: it can be forked when it runs again",
            reason=f"WORLD_{world.phase.name}",
            field="session_id",
        )


def check_standing(world: World, epoch: int, block_index: int) -> None:
    """Whether what was copied is the state of that block: asked at the boundary and after the copy.

    Raises:
        Conflict: the world has failed, was closed, or is another's by now.
    """
    if world.phase not in _STANDING or (world.epoch, world.block_index) != (epoch, block_index):
        raise Conflict(
            f"session {world.session_id} is {world.phase} at block {world.block_index}: it ended "
            "or moved away while it was forked, and no branch was kept",
            reason="PARENT_GONE",
            field="session_id",
        )


def check_noise(model: WorldModel, order: ForkOrder) -> None:
    """Whether the branches can have the noise that was asked for.

    Raises:
        InvalidInput: the model cannot split its noise, and nobody said that it may be shared.
    """
    if not order.same_noise and not isinstance(model, SplitsNoise):
        raise InvalidInput(
            f"{model.preset} does not split its noise: its branches would all draw the same; ask "
            "for that (same_noise), or give the model `SplitsNoise.split`",
            reason="NOISE_NOT_SPLIT",
            field="same_noise",
        )


def _check_epoch(world: World, epoch: int) -> None:
    if epoch != world.epoch:
        raise Fenced(f"session {world.session_id} is at epoch {world.epoch}, not {epoch}")
