"""Every bad input gets a clear error with the field or leaf named, and loses nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.conftest import PATIENT, SEED, Stage, make_stage, make_twin
from tests.oracles import bounded, play, script, signature
from worldline.cli.cluster import LocalCluster
from worldline.cli.parts import ClusterOptions, NodeOptions
from worldline.contract import Contract, DeterminismTier, ServiceClass, contract_to_proto
from worldline.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    TicketRefused,
    VersionSkew,
    WorldlineError,
)
from worldline.rpc.channel import MESSAGE_BYTES_MAX, call, mapped_errors, open_channel
from worldline.rpc.push import PushCall
from worldline.sdk import Client, Rejected
from worldline.sdk.move_record import MovePhase
from worldline.state.codec import layout_to_proto, manifest_to_proto
from worldline.v1 import (
    admission_pb2,
    admission_pb2_grpc,
    contract_pb2,
    engine_pb2,
    engine_pb2_grpc,
    move_pb2,
    mover_pb2,
    mover_pb2_grpc,
    placement_pb2,
    placement_pb2_grpc,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def stage(cluster: LocalCluster, client: Client) -> AsyncIterator[Stage]:
    """One world that all the bad inputs of this module try to hurt; in the end it plays on."""
    made = await make_stage(cluster, client)
    yield made
    await made.oracles.hold(made.session, made.twin, 2, attempts=None)
    await made.session.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("horizon_ms", 0.0),
        ("horizon_ms", -1.0),
        ("horizon_ms", math.nan),
        ("horizon_ms", math.inf),
        ("period_ms", -1.0),
        ("period_ms", math.nan),
        ("service_class", 0),
        ("determinism_tier", 99),
    ],
)
async def test_a_contract_that_means_nothing(
    cluster: LocalCluster, stage: Stage, field: str, value: float
) -> None:
    contract = contract_to_proto(PATIENT)
    setattr(contract, field, value)
    with pytest.raises(InvalidInput) as caught:
        await _open(cluster, contract)
    assert caught.value.field == f"contract.{field}"


async def test_a_replay_that_is_not_exact(cluster: LocalCluster, stage: Stage) -> None:
    contract = contract_to_proto(PATIENT)
    contract.service_class = contract_pb2.SERVICE_CLASS_C4_REPLAY
    contract.determinism_tier = contract_pb2.DETERMINISM_TIER_T2_STATISTICAL
    with pytest.raises(InvalidInput) as caught:
        await _open(cluster, contract)
    assert caught.value.field == "contract.determinism_tier"
    with pytest.raises(InvalidInput):
        Contract(
            service_class=ServiceClass.C4_REPLAY,
            horizon_ms=400,
            determinism_tier=DeterminismTier.T2_STATISTICAL,
        )


async def test_an_unknown_preset(client: Client, stage: Stage) -> None:
    with pytest.raises(InvalidInput) as caught:
        await client.open("huge", seed=1, contract=PATIENT)
    assert caught.value.field == "world.preset"
    assert "tiny" in caught.value.message


async def test_an_unknown_session(client: Client, stage: Stage) -> None:
    with pytest.raises(NotFound) as caught:
        await client.session("s-nobody")
    assert caught.value.field == "session_id"


@pytest.mark.parametrize(
    ("target", "error", "said"),
    [("node-1", InvalidInput, "node-1"), ("node-9", NotFound, "node-9")],
)
async def test_a_move_to_itself_or_to_nowhere(
    stage: Stage, target: str, error: type[WorldlineError], said: str
) -> None:
    with pytest.raises(error, match=said) as caught:
        await stage.session.move(target)
    assert caught.value.field == "target_node_id"


async def test_a_move_during_another_move(client: Client, stage: Stage) -> None:
    assert (await stage.session.admit("node-2")).admitted
    other = await client.session(stage.session.session_id)
    with pytest.raises(Conflict) as caught:
        await other.move("node-2")
    assert caught.value.reason == "MOVE_IN_PROGRESS"
    await stage.session.rollback()


async def test_a_move_to_a_full_node(client: Client, stage: Stage) -> None:
    fillers = []
    try:
        with pytest.raises(Rejected) as refused:
            for seed in range(20):
                fillers.append(
                    await client.open("tiny", seed=seed, contract=PATIENT, node="node-2")
                )
        assert refused.value.verdict.reason.name == "DEVICE_FULL"
        assert refused.value.verdict.numbers["slots_used"] == len(fillers)
        record = await stage.session.move("node-2")
        assert record.phase is MovePhase.REJECTED
        assert record.verdict is not None
        assert record.verdict.reason.name == "TARGET_FULL"
    finally:
        for filler in fillers:
            await filler.close()


async def test_a_horizon_that_no_wire_can_meet(client: Client, stage: Stage) -> None:
    hasty = dataclasses.replace(PATIENT, horizon_ms=0.001)
    async with await client.open("tiny", seed=2, contract=hasty, node="node-1") as session:
        record = await session.move("node-2")
    assert record.phase is MovePhase.REJECTED
    assert record.verdict is not None
    assert record.verdict.reason.name == "HORIZON_TOO_SHORT"
    assert record.verdict.numbers["t_migrate_ms"] > record.verdict.numbers["horizon_ms"]
    assert record.verdict.numbers["l_star_ms"] > 0


async def test_a_message_over_the_limit(cluster: LocalCluster, stage: Stage) -> None:
    async with open_channel(cluster.placement_address) as channel:
        stub = placement_pb2_grpc.PlacementServiceStub(channel)
        request = placement_pb2.GetMoveRequest(move_id="m" * (MESSAGE_BYTES_MAX + 1))
        with pytest.raises(InvalidInput) as caught:
            await call(stub.GetMove, request, timeout_s=60)
    assert caught.value.reason == "MESSAGE_TOO_LARGE"


@pytest.mark.parametrize(
    ("action", "field"),
    [
        (engine_pb2.Action(block_index=2, keyboard=16), "action.keyboard"),
        (engine_pb2.Action(block_index=2, mouse_dx=math.nan), "action.mouse_dx"),
        (engine_pb2.Action(block_index=7), "action.block_index"),
    ],
)
async def test_an_action_that_means_nothing(
    stage: Stage, action: engine_pb2.Action, field: str
) -> None:
    async with bounded(), open_channel(stage.session.info.engine_address) as channel:
        stream = engine_pb2_grpc.EngineServiceStub(channel).Play(timeout=60)
        join = engine_pb2.Join(session_id=stage.session.session_id, next_block_index=2)
        with pytest.raises(InvalidInput) as caught:
            async with mapped_errors():
                await stream.write(engine_pb2.PlayRequest(join=join))
                await stream.read()
                await stream.write(engine_pb2.PlayRequest(action=action))
                await stream.read()
        assert caught.value.field == field


async def test_a_client_that_vanishes_mid_stream(client: Client, stage: Stage) -> None:
    twin = await make_twin(client, 6)
    async with await client.open("tiny", seed=SEED, contract=PATIENT) as session:
        async with Client(client.placement_address) as vanishing:
            watched = await vanishing.session(session.session_id)
            stream = watched.play(script(6), digests=True, window=4)
            async with bounded():
                await anext(stream)
            # The channel goes with actions and blocks still on their way.
        again = await client.session(session.session_id)
        start = (await again.register_state()).block_index
        for block in await play(again, start, 6 - start):
            assert signature(block) == signature(twin[block.index])


# --- tickets: the test stands where placement stands -------------------------------------------


@dataclasses.dataclass
class Permission:
    """A ticket for the stage's world, and what it was issued for."""

    ticket: move_pb2.SignedTicket
    layout: object
    manifest: object


@pytest_asyncio.fixture(loop_scope="session")
async def permission(cluster: LocalCluster, stage: Stage) -> AsyncIterator[Permission]:
    manifest = await stage.session.register_state()
    async with open_channel(cluster.admission_address) as channel:
        stub = admission_pb2_grpc.AdmissionServiceStub(channel)
        request = admission_pb2.AdmitMoveRequest(
            move_id=f"m-{id(manifest):x}",
            session_id=stage.session.session_id,
            epoch=manifest.epoch,
            contract=contract_to_proto(PATIENT),
            source_node_id="node-1",
            targets=[admission_pb2.MoveTarget(node_id="node-2", slots_free=1)],
            extent_bytes=manifest.layout.extent_bytes,
            topology_hash=manifest.layout.topology_hash,
            purpose=move_pb2.MOVE_PURPOSE_SESSION,
        )
        answer = await call(stub.AdmitMove, request, timeout_s=60)
        assert answer.verdict.admitted, answer.verdict
        claims = move_pb2.TicketClaims.FromString(answer.ticket.claims)
        yield Permission(
            answer.ticket, layout_to_proto(manifest.layout), manifest_to_proto(manifest)
        )
        finish = admission_pb2.FinishMoveRequest(
            ticket_id=claims.ticket_id, move_id=claims.move_id, reason="TEST"
        )
        await call(stub.FinishMove, finish, timeout_s=60)


async def test_a_forged_ticket(cluster: LocalCluster, permission: Permission) -> None:
    claims = move_pb2.TicketClaims.FromString(permission.ticket.claims)
    claims.extent_bytes_max *= 2
    permission.ticket.claims = claims.SerializeToString()
    with pytest.raises(TicketRefused) as caught:
        await _reserve(cluster, "node-2", permission)
    assert caught.value.reason == "TICKET_FORGED"


async def test_a_ticket_used_twice(cluster: LocalCluster, permission: Permission) -> None:
    reserved = await _reserve(cluster, "node-2", permission)
    with pytest.raises(TicketRefused) as caught:
        await _reserve(cluster, "node-2", permission)
    assert caught.value.reason == "TICKET_USED"
    await _release(cluster, "node-2", reserved, permission)


async def test_a_ticket_for_another_node(cluster: LocalCluster, permission: Permission) -> None:
    with pytest.raises(TicketRefused) as caught:
        await _reserve(cluster, "node-1", permission)
    assert caught.value.reason == "TICKET_MISMATCH"


async def test_a_layout_beyond_the_ticket(cluster: LocalCluster, permission: Permission) -> None:
    permission.layout.extent_bytes += 1 << 20
    with pytest.raises(InvalidInput) as caught:
        await _reserve(cluster, "node-2", permission)
    assert caught.value.field == "layout.extent_bytes"


async def test_a_ticket_for_another_session(cluster: LocalCluster, permission: Permission) -> None:
    permission.manifest.session_id = "s-somebody-else"
    reserved = await _reserve(cluster, "node-2", permission)
    with pytest.raises(WorldlineError) as caught:
        await _push(cluster, permission, reserved)
    assert caught.value.reason in ("TICKET_MISMATCH", "MANIFEST_MISMATCH")
    await _release(cluster, "node-2", reserved, permission)


async def test_a_landing_in_another_protocol_version(
    cluster: LocalCluster, permission: Permission
) -> None:
    reserved = await _reserve(cluster, "node-2", permission)
    offer = mover_pb2.LandOffer(
        protocol_version=999,
        ticket=permission.ticket,
        reservation_id=reserved.reservation_id,
        session_id=permission.manifest.session_id,
        epoch=permission.manifest.epoch,
        layout=permission.manifest.layout,
        verification=move_pb2.VERIFICATION_PIPELINED,
        chunk_bytes=1 << 20,
        window_chunks=2,
        worker_address=b"nowhere",
        device="cpu",
    )
    async with bounded(), open_channel(cluster.services["mover-node-2"].address) as channel:
        stream = mover_pb2_grpc.MoverServiceStub(channel).Land(timeout=60)
        with pytest.raises(VersionSkew):
            async with mapped_errors():
                await stream.write(mover_pb2.LandRequest(offer=offer))
                await stream.read()
    await _release(cluster, "node-2", reserved, permission)


async def test_an_engine_of_another_version(cluster: LocalCluster, stage: Stage) -> None:
    async with open_channel(cluster.placement_address) as channel:
        stub = placement_pb2_grpc.PlacementServiceStub(channel)
        request = placement_pb2.RegisterEngineRequest(
            protocol_version=999, engine_id="e-x", node_id="node-1", incarnation="x"
        )
        with pytest.raises(VersionSkew):
            await call(stub.RegisterEngine, request, timeout_s=60)


async def test_a_node_of_another_fingerprint() -> None:
    node = NodeOptions(engine_variables={"weights_seed": "99"})
    options = ClusterOptions(slots=2, slot_bytes=16 << 20, node_options={"node-2": node})
    async with (
        bounded(250),
        LocalCluster(options) as other,
        Client(other.placement_address) as client,
        await client.open("tiny", seed=SEED, contract=PATIENT, node="node-1") as session,
    ):
        before = await play(session, 0, 2)
        record = await session.move("node-2")
        assert record.phase is MovePhase.REJECTED
        assert record.verdict is not None
        assert record.verdict.reason.name == "FINGERPRINT_MISMATCH"
        assert "weights" in record.verdict.explanation
        assert len(before) == len(await play(session, 2, 2))


async def _open(cluster: LocalCluster, contract: contract_pb2.Contract) -> None:
    async with open_channel(cluster.placement_address) as channel:
        request = placement_pb2.OpenSessionRequest(
            contract=contract, world=engine_pb2.WorldSpec(preset="tiny", seed=1)
        )
        stub = placement_pb2_grpc.PlacementServiceStub(channel)
        await call(stub.OpenSession, request, timeout_s=60)


async def _reserve(
    cluster: LocalCluster, node_id: str, permission: Permission
) -> mover_pb2.ReserveResponse:
    async with open_channel(cluster.services[f"mover-{node_id}"].address) as channel:
        request = mover_pb2.ReserveRequest(ticket=permission.ticket, layout=permission.layout)
        return await call(mover_pb2_grpc.MoverServiceStub(channel).Reserve, request, timeout_s=60)


async def _push(
    cluster: LocalCluster, permission: Permission, reserved: mover_pb2.ReserveResponse
) -> None:
    async with open_channel(cluster.services["mover-node-1"].address) as channel:
        order = mover_pb2.PushOrder(
            ticket=permission.ticket,
            session_id=permission.manifest.session_id,
            epoch=permission.manifest.epoch,
            layout=permission.manifest.layout,
            source_slot=move_pb2.SlotRef(node_id="node-1", slot_index=0, generation=1),
            reservation_id=reserved.reservation_id,
            target_mover_address=cluster.services["mover-node-2"].address,
            verification=move_pb2.VERIFICATION_PIPELINED,
        )
        push = PushCall(mover_pb2_grpc.MoverServiceStub(channel), order, 20)
        try:
            await push.arm()
        finally:
            await push.close()


async def _release(
    cluster: LocalCluster,
    node_id: str,
    reserved: mover_pb2.ReserveResponse,
    permission: Permission,
) -> None:
    claims = move_pb2.TicketClaims.FromString(permission.ticket.claims)
    async with open_channel(cluster.services[f"mover-{node_id}"].address) as channel:
        request = mover_pb2.ReleaseRequest(slot=reserved.slot, session_id=claims.session_id)
        answer = await call(mover_pb2_grpc.MoverServiceStub(channel).Release, request, timeout_s=60)
    assert answer.released
