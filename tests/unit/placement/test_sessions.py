"""Opening, closing, listing, and the leases of those who serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.placement import session_table
from tests.unit.placement.cluster import Cluster, running_cluster
from tests.unit.placement.makers import EQUAL, contract
from worldline.contract import contract_to_proto
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    Fenced,
    InvalidInput,
    NotFound,
    Unavailable,
    VersionSkew,
)
from worldline.rpc.channel import PROTOCOL_VERSION
from worldline.state.codec import fingerprint_to_proto
from worldline.v1 import engine_pb2, move_pb2, placement_pb2
from worldline.verdict import RejectReason, Verdict


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as one:
        yield one


async def close(cluster: Cluster, session_id: str) -> None:
    await cluster.ask("CloseSession", placement_pb2.CloseSessionRequest(session_id=session_id))


async def listed(cluster: Cluster) -> dict[str, placement_pb2.Session]:
    answer = await cluster.ask("ListSessions", placement_pb2.ListSessionsRequest())
    return {one.session_id: one for one in answer.sessions}


async def nodes(cluster: Cluster) -> dict[str, placement_pb2.Node]:
    answer = await cluster.ask("ListNodes", placement_pb2.ListNodesRequest())
    return {one.node_id: one for one in answer.nodes}


async def test_a_close_that_meets_the_end_of_a_move_closes(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the session and the change of its state a move may end."""
    session = (await cluster.open("")).session
    set_state, refused = session_table.set_state, iter([False])

    def moving_at_first(*arguments: Any) -> bool:
        return next(refused, True) and set_state(*arguments)

    monkeypatch.setattr(session_table, "set_state", moving_at_first)
    await close(cluster, session.session_id)
    assert await listed(cluster) == {}
    assert all(not one.slots for one in cluster.movers.values())


async def test_open_and_close(cluster: Cluster) -> None:
    answer = await cluster.open("")
    session = answer.session
    assert answer.verdict.admitted
    assert (session.state, session.epoch, session.state_bytes) == ("live", 1, 2048)
    assert session.engine_address == cluster.addresses[session.engine_id]
    assert session.world.preset == "tiny"
    assert (await cluster.resolve(session.session_id)) == session
    assert (await nodes(cluster))[session.node_id].devices[0].slots_free == 3
    await close(cluster, session.session_id)
    await close(cluster, session.session_id)
    assert await listed(cluster) == {}
    assert all(not one.slots for one in cluster.movers.values())
    assert all(not one.worlds for one in cluster.engines.values())
    with pytest.raises(NotFound) as caught:
        await cluster.resolve(session.session_id)
    assert caught.value.reason == "SESSION_CLOSED"
    with pytest.raises(NotFound):
        await close(cluster, "nobody")


async def test_sessions_spread_and_the_load_is_told(cluster: Cluster) -> None:
    places = [(await cluster.open("")).session.node_id for _ in range(4)]
    assert places == ["n1", "n2", "n1", "n2"]
    assert [one.slots_used for one in cluster.admission.loads] == [0, 0, 1, 1]


async def test_a_full_fleet_is_a_reject(cluster: Cluster) -> None:
    for _ in range(8):
        await cluster.session("")
    answer = await cluster.open("")
    assert not answer.HasField("session")
    assert answer.verdict.reason == RejectReason.DEVICE_FULL
    assert len(await listed(cluster)) == 8


async def test_admission_may_say_no(cluster: Cluster) -> None:
    no = Verdict.reject(RejectReason.DEVICE_OVERCOMMITTED, "too much")
    cluster.admission.session_verdicts = [no]
    answer = await cluster.open()
    assert answer.verdict.reason == RejectReason.DEVICE_OVERCOMMITTED
    assert "e1.OpenWorld" not in cluster.faults.calls


async def test_an_engine_without_room_is_a_reject_and_leaves_nothing(cluster: Cluster) -> None:
    cluster.faults.fail("e1.OpenWorld", CapacityExhausted("no slot"))
    answer = await cluster.open()
    assert answer.verdict.reason == RejectReason.DEVICE_FULL
    assert await listed(cluster) == {}


async def test_an_opening_whose_reply_is_lost_is_undone(cluster: Cluster) -> None:
    cluster.faults.lose_reply("e1.OpenWorld", Unavailable("the reply is lost"))
    with pytest.raises(Unavailable):
        await cluster.open()
    assert cluster.engines["e1"].worlds == {}
    assert await listed(cluster) == {}
    # Its slot is named as nobody's at the node's next renewal.
    (key,) = cluster.movers["n1"].slots
    orphan = move_pb2.SlotRef(node_id="n1", slot_index=key[0], generation=key[1])
    assert await renew_node(cluster, [(orphan, "whoever")]) == [orphan]


async def test_an_idempotency_key_opens_once(cluster: Cluster) -> None:
    many = await asyncio.gather(*(cluster.open(key="k") for _ in range(8)))
    again = await cluster.open(key="k")
    assert {one.session.session_id for one in (*many, again)} == {again.session.session_id}
    assert len(await listed(cluster)) == 1


async def test_a_client_that_leaves_while_opening_leaves_no_half(cluster: Cluster) -> None:
    gate = cluster.faults.hold("e1.OpenWorld")
    opening = asyncio.ensure_future(cluster.open(key="k"))
    await cluster.faults.reach("e1.OpenWorld")
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    gate.set()
    session = (await cluster.open(key="k")).session
    assert session.state == "live"
    assert len(await listed(cluster)) == 1


async def test_bad_openings_name_the_field(cluster: Cluster) -> None:
    good = contract_to_proto(contract())
    world = engine_pb2.WorldSpec(preset="tiny")
    nan = contract_to_proto(contract())
    nan.horizon_ms = float("nan")
    cases = [
        (placement_pb2.OpenSessionRequest(world=world), "contract.service_class"),
        (placement_pb2.OpenSessionRequest(contract=nan, world=world), "contract.horizon_ms"),
        (placement_pb2.OpenSessionRequest(contract=good), "world.preset"),
        (
            placement_pb2.OpenSessionRequest(contract=good, world=world, node_id="a b"),
            "node_id",
        ),
    ]
    for request, field in cases:
        with pytest.raises(InvalidInput) as caught:
            await cluster.ask("OpenSession", request)
        assert caught.value.field == field
    with pytest.raises(NotFound) as missing:
        await cluster.open("n9")
    assert missing.value.field == "node_id"


async def renew_node(
    cluster: Cluster,
    uses: list[tuple[move_pb2.SlotRef, str]],
    incarnation: str = "j1",
    **changes: Any,
) -> list[move_pb2.SlotRef]:
    request = placement_pb2.RenewNodeRequest(node_id="n1", incarnation=incarnation)
    use = {"role": move_pb2.SLOT_ROLE_LIVE, "age_ms": 1, "device": "cpu"} | changes
    for slot, session_id in uses:
        request.slots.add(slot=slot, session_id=session_id, **use)
    return list((await cluster.ask("RenewNode", request)).orphans)


async def test_only_slots_of_nobody_are_orphans(cluster: Cluster) -> None:
    session = (await cluster.open()).session
    stale = move_pb2.SlotRef(node_id="n1", slot_index=3, generation=77)
    uses = [(session.slot, session.session_id), (stale, session.session_id)]
    assert await renew_node(cluster, uses) == [stale]
    # While it moves, nothing of it is given away.
    move_id = (await cluster.admit(session.session_id)).move_id
    assert await renew_node(cluster, uses) == []
    await cluster.verb("Rollback", move_id)
    assert await renew_node(cluster, uses) == [stale]


async def test_a_closed_sessions_slot_is_kept_until_its_engine_lets_go(cluster: Cluster) -> None:
    """The engine writes there until the boundary of its block."""
    session = (await cluster.open()).session
    uses = [(session.slot, session.session_id)]
    gate = cluster.faults.hold("e1.CloseWorld")
    request = placement_pb2.CloseSessionRequest(session_id=session.session_id)
    closing = asyncio.ensure_future(cluster.ask("CloseSession", request))
    await cluster.faults.reach("e1.CloseWorld")
    assert await listed(cluster) == {}
    assert await renew_node(cluster, uses) == []
    gate.set()
    await closing
    assert await renew_node(cluster, uses) == [session.slot]


async def test_foreign_slots_count_as_taken(cluster: Cluster) -> None:
    foreign = [
        (move_pb2.SlotRef(node_id="n1", slot_index=index, generation=9), f"other-{index}")
        for index in range(4)
    ]
    await renew_node(cluster, foreign)
    assert (await nodes(cluster))["n1"].devices[0].slots_free == 0
    assert (await cluster.open("n1")).verdict.reason == RejectReason.DEVICE_FULL
    await renew_node(cluster, [])
    assert (await nodes(cluster))["n1"].devices[0].slots_free == 4


async def test_slots_of_probes_count_as_free(cluster: Cluster) -> None:
    """Their mover says that whoever needs one has it."""
    probing = [
        (move_pb2.SlotRef(node_id="n1", slot_index=index, generation=9), f"probe-{index}")
        for index in range(4)
    ]
    shadow = move_pb2.SLOT_ROLE_SHADOW
    await renew_node(cluster, probing, role=shadow, gives_way=True)
    (device,) = (await nodes(cluster))["n1"].devices
    assert (device.slots_free, device.slots_shadow) == (4, 4)
    assert (await cluster.open("n1")).session.state == "live"


async def test_a_slot_that_came_back_since_the_last_report_is_free(cluster: Cluster) -> None:
    """Who closes a session and opens another is not told of a full node that is full no more."""
    opened = [(await cluster.open()).session for _ in range(4)]
    uses = [(one.slot, one.session_id) for one in opened]
    gate = cluster.faults.hold("e1.CloseWorld")
    request = placement_pb2.CloseSessionRequest(session_id=opened[0].session_id)
    closing = asyncio.ensure_future(cluster.ask("CloseSession", request))
    await cluster.faults.reach("e1.CloseWorld")
    await renew_node(cluster, uses)
    assert (await nodes(cluster))["n1"].devices[0].slots_free == 0
    gate.set()
    await closing
    assert (await nodes(cluster))["n1"].devices[0].slots_free == 1
    await renew_node(cluster, uses)  # made before the slot came back
    assert (await nodes(cluster))["n1"].devices[0].slots_free == 1
    assert (await cluster.open()).session.state == "live"


async def test_an_engine_learns_what_it_owns(cluster: Cluster) -> None:
    session_id = await cluster.session()
    assert await cluster.renew_engine("e1") == {session_id: 1}
    assert await cluster.renew_engine("e2") == {}


async def test_the_session_of_a_failed_world_is_closed_on_its_owners_word_alone(
    cluster: Cluster,
) -> None:
    session_id = await cluster.session()
    await cluster.renew_engine("e2", failed={session_id: 1})
    await cluster.renew_engine("e1", failed={session_id: 2, "nobody": 1})
    await cluster.renew_engine("e1")
    assert set(await listed(cluster)) == {session_id}
    await cluster.renew_engine("e1", failed={session_id: 1})
    async with asyncio.timeout(60):
        while any(one.slots for one in cluster.movers.values()):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
    assert await listed(cluster) == {}
    await cluster.renew_engine("e1", failed={session_id: 1})


async def test_a_peer_that_restarts_at_its_old_address_is_dialled_anew(cluster: Cluster) -> None:
    """The channel to the former process waits up to two seconds before it connects again."""
    await cluster.session()
    assert cluster.placement is not None
    peers = cluster.placement.peers
    for name, again, register in (
        ("e1", "i2", cluster.register_engine),
        ("n1", "j2", cluster.register_node),
    ):
        address = cluster.addresses[name]
        former = peers._pool.get(address)
        await register(name)
        assert peers._pool.get(address) is former, "the same process registers again"
        await register(name, again)
        assert peers._pool.get(address) is not former


async def test_a_restarted_engine_owns_nothing_and_its_old_self_is_fenced(
    cluster: Cluster,
) -> None:
    session_id = await cluster.session()
    await cluster.register_engine("e1", "i2")
    assert (await cluster.resolve(session_id)).state == "lost"
    assert await cluster.renew_engine("e1", "i2") == {}
    with pytest.raises(Fenced):
        await cluster.renew_engine("e1", "i1")
    with pytest.raises(Conflict) as caught:
        await cluster.move(session_id)
    assert caught.value.reason == "SESSION_LOST"
    await close(cluster, session_id)
    assert not cluster.movers["n1"].slots


async def test_an_engine_on_a_device_without_slots_is_refused(cluster: Cluster) -> None:
    request = placement_pb2.RegisterEngineRequest(
        protocol_version=PROTOCOL_VERSION,
        engine_id="e7",
        node_id="n1",
        engine_address="127.0.0.1:7",
        device="cuda:0",
        device_uuid="GPU-7",
        incarnation="x",
    )
    request.fingerprint.CopyFrom(fingerprint_to_proto(EQUAL))
    with pytest.raises(InvalidInput) as caught:
        await cluster.ask("RegisterEngine", request)
    assert (caught.value.reason, caught.value.field) == ("DEVICE_UNKNOWN", "device")
    assert "cpu" in caught.value.message


async def test_skewed_and_bad_registrations(cluster: Cluster) -> None:
    with pytest.raises(VersionSkew):
        await cluster.ask(
            "RegisterNode", placement_pb2.RegisterNodeRequest(protocol_version=PROTOCOL_VERSION + 1)
        )
    with pytest.raises(InvalidInput) as caught:
        await cluster.ask(
            "RegisterNode",
            placement_pb2.RegisterNodeRequest(
                protocol_version=PROTOCOL_VERSION,
                node_id="n",
                mover_address="a:1",
                incarnation="x",
                host_id="h",
            ),
        )
    assert caught.value.field == "devices"
    with pytest.raises(InvalidInput) as unsigned:
        await cluster.ask(
            "RegisterEngine",
            placement_pb2.RegisterEngineRequest(
                protocol_version=PROTOCOL_VERSION, engine_id="e", node_id="n1", engine_address="a:1"
            ),
        )
    assert unsigned.value.field == "fingerprint.facts"
    cluster.addresses["e7"] = "127.0.0.1:1"
    cluster.engines["e7"] = cluster.engines["e1"]
    with pytest.raises(Unavailable) as early:
        await cluster.register_engine("e7")
    assert early.value.reason == "NODE_UNKNOWN"
    del cluster.engines["e7"]
    for method, request in (
        ("RenewNode", placement_pb2.RenewNodeRequest(node_id="n9", incarnation="x")),
        ("RenewEngine", placement_pb2.RenewEngineRequest(engine_id="e9", incarnation="x")),
    ):
        with pytest.raises(NotFound):
            await cluster.ask(method, request)
