"""Engines that do not repeat themselves: what they say is listed, and T0 sessions go elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.placement.fleet import Fleet
from tests.unit.placement.cluster import Cluster, running_cluster
from tests.unit.placement.makers import contract, engine, node
from worldline.contract import DeterminismTier
from worldline.errors import InvalidInput
from worldline.v1 import engine_pb2, move_pb2, placement_pb2
from worldline.verdict import RejectReason

T1 = DeterminismTier.T1_SCHEDULE_STABLE
SAID = "generated again: block 0: leaf kv_cache[0].k differs"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as one:
        yield one


async def renew(cluster: Cluster, engine_id: str, preset: str, differs: str) -> None:
    request = placement_pb2.RenewEngineRequest(
        engine_id=engine_id,
        incarnation="i1",
        self_checks=[engine_pb2.SelfCheck(preset=preset, differs=differs)],
    )
    await cluster.ask("RenewEngine", request)


async def listed(cluster: Cluster) -> dict[str, dict[str, str]]:
    answer = await cluster.ask("ListNodes", placement_pb2.ListNodesRequest())
    engines = [one for each in answer.nodes for one in each.engines]
    return {
        one.engine_id: {check.preset: check.differs for check in one.self_checks} for one in engines
    }


async def test_what_an_engine_found_out_is_listed_until_another_process_has_its_name(
    cluster: Cluster,
) -> None:
    assert await listed(cluster) == {"e1": {}, "e2": {}}
    await renew(cluster, "e1", "tiny", "")
    await renew(cluster, "e2", "tiny", SAID)
    assert await listed(cluster) == {"e1": {"tiny": ""}, "e2": {"tiny": SAID}}
    await cluster.register_engine("e2", "i2")
    assert (await listed(cluster))["e2"] == {}
    with pytest.raises(InvalidInput) as caught:
        await renew(cluster, "e1", "", "")
    assert caught.value.field == "self_checks.preset"


async def test_a_session_opens_where_its_preset_repeats_itself(cluster: Cluster) -> None:
    """The engine finds out with the first session that it gets, which goes elsewhere."""
    cluster.engines["e1"].differs["tiny"] = SAID
    opened = await cluster.open("")
    assert opened.session.engine_id == "e2"
    assert opened.session.contract.determinism_tier == DeterminismTier.T0_BITWISE
    assert "tiny" in (await listed(cluster))["e1"]
    refused = await cluster.open("n1")
    assert refused.verdict.reason == RejectReason.NOT_DETERMINISTIC
    assert "e1 does not generate tiny twice" in refused.verdict.explanation
    assert cluster.engines["e1"].worlds == {}
    sessions = await cluster.ask("ListSessions", placement_pb2.ListSessionsRequest())
    assert [one.engine_id for one in sessions.sessions] == ["e2"]


async def test_where_none_repeats_itself_the_tier_drops_if_the_contract_lets_it(
    cluster: Cluster,
) -> None:
    for one in cluster.engines.values():
        one.differs["tiny"] = SAID
    assert (await cluster.open("")).verdict.reason == RejectReason.NOT_DETERMINISTIC
    session = (await cluster.open("", of=contract(tier_drop_allowed=True))).session
    assert session.contract.determinism_tier == T1
    assert not session.contract.tier_drop_allowed
    assert cluster.engines[session.engine_id].tiers[session.session_id] == T1
    assert (await cluster.open("", of=contract(determinism_tier=T1))).session.state == "live"


async def test_a_target_that_finds_out_while_it_warms_gets_no_t0_session(cluster: Cluster) -> None:
    session_id = await cluster.session("n1")
    cluster.engines["e2"].differs["tiny"] = SAID
    record = await cluster.move(session_id)
    assert record.phase == move_pb2.MOVE_PHASE_ABORTED
    assert record.failure.reason == "NOT_DETERMINISTIC"
    assert not record.tier_dropped
    cluster.check_at(session_id, "e1")
    again = await cluster.move(session_id)
    assert again.phase == move_pb2.MOVE_PHASE_REJECTED
    assert again.verdict.reason == RejectReason.NOT_DETERMINISTIC


async def test_the_tier_drops_where_the_target_is_known_to_differ(cluster: Cluster) -> None:
    lenient = (await cluster.open("n1", of=contract(tier_drop_allowed=True))).session.session_id
    await renew(cluster, "e2", "tiny", SAID)
    record = await cluster.move(lenient)
    assert record.phase == move_pb2.MOVE_PHASE_DONE
    assert record.tier_dropped
    assert (await cluster.resolve(lenient)).contract.determinism_tier == T1
    back = await cluster.move(lenient, "n1")
    assert (back.phase, back.tier_dropped) == (move_pb2.MOVE_PHASE_DONE, False)


def test_a_word_of_a_former_process_changes_nothing() -> None:
    fleet = Fleet(node_lease_ms=1000, engine_lease_ms=1000)
    changed: list[str] = []
    fleet.put_node(node("1"), 0.0)
    fleet.put_engine(engine("1"), 0.0)
    fleet.on_change(changed.append)
    fleet.note_self_checks("e1", "another", {"tiny": SAID})
    fleet.note_self_checks("unheard", "i1", {"tiny": SAID})
    assert (fleet.differing("e1"), changed) == (frozenset(), [])
    fleet.note_self_checks("e1", "i1", {"tiny": SAID, "small": ""})
    fleet.note_self_checks("e1", "i1", {"tiny": SAID})  # nothing new
    assert (fleet.differing("e1"), changed) == (frozenset({"tiny"}), ["n1"])
