"""Making: what an engine makes of a contract, a model and a slot, however a world comes."""

from __future__ import annotations

from services.engine.core import Phase, World
from services.engine.memory import Memory
from services.engine.models import Loaded
from services.engine.ownstate import OwnState
from services.engine.pace import pace_of
from services.engine.parts import Parts
from services.engine.slotmap import SlotMap
from services.engine.slotstate import SlotState
from services.engine.world import InParts, OwnsState, StateTree, WorldModel
from worldline.contract import Contract
from worldline.errors import InvalidInput
from worldline.state.layout import Layout


def new_world(
    session_id: str,
    epoch: int,
    phase: Phase,
    contract: Contract,
    *,
    block_index: int = 0,
    move_id: str = "",
    heard_at: float = 0.0,
) -> World:
    """A world under that contract, at block `block_index`."""
    return World(
        session_id=session_id,
        epoch=epoch,
        phase=phase,
        block_index=block_index,
        pace=pace_of(contract),
        move_id=move_id,
        heard_at=heard_at,
    )


def memory_for(model: WorldModel, mapped: SlotMap, layout: Layout) -> Memory:
    """The state of that layout in a mapped slot; nothing is loaded or begun yet."""
    if isinstance(model, OwnsState):
        return OwnState(mapped, layout, model)
    return SlotState(mapped, layout)


def initialised(model: WorldModel, state: StateTree, seed: int) -> Parts[None]:
    """The state of a fresh session: in parts where the model can, else in one."""
    if isinstance(model, InParts):
        yield from model.initialising(state, seed)
    else:
        model.initialise(state, seed)


def made(model: WorldModel, memory: Memory, seed: int) -> Parts[None]:
    """A fresh session in that memory. Raises as `Memory.begin`, and whatever the model raises."""
    memory.begin()
    yield
    yield from initialised(model, memory.state, seed)


def check_quality(contract: Contract, loaded: Loaded) -> None:
    """The contract's floor is one that the model reaches.

    Raises:
        InvalidInput: it is higher.
    """
    steps = loaded.model.denoising_steps
    if contract.quality_floor_steps > steps:
        raise InvalidInput(
            f"contract.quality_floor_steps is {contract.quality_floor_steps}: "
            f"{loaded.model.preset} denoises in {steps} steps",
            field="contract.quality_floor_steps",
        )
