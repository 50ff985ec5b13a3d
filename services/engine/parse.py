"""Parse: engine messages into domain values, once, at the edge; and blocks back."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.outbox import BlockRecord
from services.engine.world import Action
from worldline.contract import Contract, ServiceClass
from worldline.errors import InvalidInput
from worldline.fields import identifier
from worldline.v1 import engine_pb2


@dataclass(frozen=True)
class WorldSpec:
    """What kind of world to make."""

    preset: str
    seed: int


@dataclass(frozen=True)
class Join:
    """What a client asks of a stream."""

    session_id: str
    next_block_index: int
    digests_wanted: bool
    frames_wanted: bool


def spec_from_proto(message: engine_pb2.WorldSpec) -> WorldSpec:
    """The preset's existence is the model factory's to check. Raises InvalidInput."""
    return WorldSpec(identifier(message.preset, "world.preset"), message.seed)


def action_from_proto(message: engine_pb2.Action) -> Action:
    """One action. Raises InvalidInput naming the field."""
    return Action(message.block_index, message.keyboard, message.mouse_dx, message.mouse_dy)


def steps_from_proto(message: engine_pb2.Action, contract: Contract, denoising_steps: int) -> int:
    """Steps that a replay wants of the action's block; 0 where nobody says.

    Raises:
        InvalidInput: the session is no replay, or the model has fewer.
    """
    if message.steps == 0:
        return 0
    if contract.service_class is not ServiceClass.C4_REPLAY:
        raise InvalidInput(
            f"action.steps is {message.steps}: only a C4 replay says how many steps a block has, "
            f"and this session is {contract.service_class.name}; leave it 0",
            field="action.steps",
        )
    if message.steps > denoising_steps:
        raise InvalidInput(
            f"action.steps is {message.steps}: this model denoises in {denoising_steps} steps",
            field="action.steps",
        )
    return message.steps


def join_from_proto(request: engine_pb2.PlayRequest) -> Join:
    """The first message of a stream.

    Raises:
        InvalidInput: it is no join.
    """
    if request.WhichOneof("event") != "join":
        raise InvalidInput("the first message of a stream must be a join", field="join")
    join = request.join
    return Join(
        identifier(join.session_id, "join.session_id"),
        join.next_block_index,
        join.digests_wanted,
        join.frames_wanted,
    )


def block_to_proto(record: BlockRecord, frames_wanted: bool) -> engine_pb2.PlayResponse:
    """One block as the client gets it. Frames that are not sent are not described either."""
    frames = record.frames
    block = engine_pb2.Block(
        block_index=record.block_index,
        epoch=record.epoch,
        state_digest=record.state_digest,
        generate_ms=record.generate_ms,
        frames_digest=record.frames_digest,
        steps=record.quality.steps,
        steps_full=record.quality.steps_full,
        degraded_because=record.quality.because,
        releases_skipped=record.releases_skipped,
        late_ms=record.late_ms,
    )
    if frames_wanted and frames.count > 0:
        block.frames = frames.pixels
        block.frame_count = frames.count
        block.height = frames.height
        block.width = frames.width
    return engine_pb2.PlayResponse(block=block)
