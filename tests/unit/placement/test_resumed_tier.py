"""A resume on an engine with another configuration: refused at T0, or at T1 if that is allowed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.placement import node_table, session_table, suspension_table
from services.placement.choose import Chosen, MoveWish, choose_to_resume
from services.placement.device import Place
from services.placement.parked import Parked, parked_from_json, parked_to_json
from services.placement.records import SessionState
from services.placement.room import paces_at
from services.placement.schema import open_directory
from services.placement.suspension import Suspension
from services.placement.suspension_record import SuspensionEntry
from services.placement.values import Party
from tests.unit.placement.cluster import Cluster, running_cluster
from tests.unit.placement.makers import (
    EQUAL,
    OTHER_TORCH,
    OTHER_WEIGHTS,
    candidate,
    contract,
    engine,
    node,
    session,
)
from tests.unit.placement.suspensions import (
    check_live,
    check_suspended,
    record,
    resume,
    settle,
    suspend,
)
from worldline.contract import Contract, DeterminismTier, contract_from_proto
from worldline.errors import Conflict
from worldline.park import ParkKind, SuspensionVerb
from worldline.state.manifest import Fingerprint
from worldline.v1 import move_pb2, park_pb2
from worldline.verdict import RejectReason, Verdict

T0, T1 = DeterminismTier.T0_BITWISE, DeterminismTier.T1_SCHEDULE_STABLE
LENIENT = contract(tier_drop_allowed=True)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as one:
        yield one


async def suspended(cluster: Cluster, of: Contract) -> str:
    session_id = str((await cluster.open(of=of)).session.session_id)
    await suspend(cluster, session_id, kind="PARK_KIND_FILE")
    return session_id


async def changed(cluster: Cluster, fingerprint: Fingerprint, incarnation: str = "i2") -> None:
    """The engine of n1 comes back as another."""
    cluster.engines["e1"].fingerprint = fingerprint
    await cluster.register_engine("e1", incarnation)


async def tier(cluster: Cluster, session_id: str) -> DeterminismTier:
    session = await cluster.resolve(session_id)
    return contract_from_proto(session.contract).determinism_tier


async def test_an_unequal_engine_is_refused_and_says_what_differs(cluster: Cluster) -> None:
    session_id = await suspended(cluster, contract())
    await changed(cluster, OTHER_TORCH)
    answer = await resume(cluster, session_id)
    assert answer.verdict.reason == move_pb2.REJECT_REASON_FINGERPRINT_MISMATCH
    for words in ("no engine of its node", "torch", "'2.13.0' here", "tier_drop_allowed"):
        assert words in answer.verdict.explanation
    assert answer.session.state == "suspended"
    check_suspended(cluster, session_id)
    await changed(cluster, EQUAL, "i3")
    assert not (await resume(cluster, session_id)).suspension.tier_dropped
    assert await tier(cluster, session_id) is T0


async def test_the_tier_drops_where_the_contract_allows_it(cluster: Cluster) -> None:
    session_id = await suspended(cluster, LENIENT)
    await changed(cluster, OTHER_TORCH)
    answer = await resume(cluster, session_id)
    assert answer.suspension.phase == park_pb2.SUSPENSION_PHASE_DONE
    assert answer.suspension.tier_dropped
    assert await record(cluster, answer.suspension.suspension_id) == answer.suspension
    check_live(cluster, session_id)
    assert cluster.engines["e1"].tiers[session_id] == T1
    assert await tier(cluster, session_id) is T1
    # It stays there, and goes on as any other at T1.
    await suspend(cluster, session_id)
    assert not (await resume(cluster, session_id)).suspension.tier_dropped
    assert await tier(cluster, session_id) is T1


async def test_no_tier_holds_between_different_worlds(cluster: Cluster) -> None:
    session_id = await suspended(cluster, LENIENT)
    await changed(cluster, OTHER_WEIGHTS)
    answer = await resume(cluster, session_id)
    assert answer.verdict.reason == move_pb2.REJECT_REASON_FINGERPRINT_MISMATCH
    assert "tier_drop_allowed" not in answer.verdict.explanation


async def test_a_resume_that_is_undone_drops_nothing(cluster: Cluster) -> None:
    session_id = await suspended(cluster, LENIENT)
    await changed(cluster, OTHER_TORCH)
    cluster.faults.fail("e1.Attach", Conflict("no weights"))
    with pytest.raises(Conflict):
        await resume(cluster, session_id)
    await settle(cluster)
    assert await tier(cluster, session_id) is T0
    await changed(cluster, EQUAL, "i3")
    assert not (await resume(cluster, session_id)).suspension.tier_dropped


async def test_a_restart_behind_the_record_knows_of_the_drop(cluster: Cluster) -> None:
    session_id = await suspended(cluster, LENIENT)
    await changed(cluster, OTHER_TORCH)
    gate = cluster.faults.hold("e1.Activate")
    resuming = asyncio.ensure_future(resume(cluster, session_id))
    await cluster.faults.reach("e1.Activate")
    await cluster.crash_placement()
    await asyncio.gather(resuming, return_exceptions=True)
    cluster.faults.gates.pop("e1.Activate")
    gate.set()
    await cluster.start_placement()
    await settle(cluster)
    check_live(cluster, session_id)
    assert await tier(cluster, session_id) is T1


async def test_what_the_self_check_finds_is_known_to_the_next_resume(cluster: Cluster) -> None:
    session_id = await suspended(cluster, LENIENT)
    cluster.faults.fail("e1.Attach", Conflict("it differs", reason="NOT_DETERMINISTIC"))
    with pytest.raises(Conflict) as caught:
        await resume(cluster, session_id)
    assert caught.value.reason == "NOT_DETERMINISTIC"
    assert (await resume(cluster, session_id)).suspension.tier_dropped


# --- the choice --------------------------------------------------------------------------------


def wish(of: Contract) -> MoveWish:
    return MoveWish("", Place("h1"), EQUAL, of, 100, preset="tiny")


def test_an_equal_engine_goes_before_the_last_one_and_that_before_names() -> None:
    equal, other = candidate("3"), candidate("2", fingerprint=OTHER_TORCH)
    assert choose_to_resume([equal, other], wish(LENIENT), "e2") == Chosen("e3", False)
    assert choose_to_resume([other], wish(LENIENT), "e3") == Chosen("e2", True)
    assert choose_to_resume([candidate("1"), equal], wish(contract()), "e3") == Chosen("e3")
    assert choose_to_resume([candidate("1"), equal], wish(contract()), "gone") == Chosen("e1")
    loose = contract(determinism_tier=T1)
    assert choose_to_resume([other], wish(loose), "e1") == Chosen("e2"), "nothing to drop"


def test_an_engine_that_differs_from_itself_takes_no_t0_world() -> None:
    unsteady = candidate("1", differing=frozenset({"tiny"}))
    refused = choose_to_resume([unsteady], wish(contract()), "e1")
    assert isinstance(refused, Verdict)
    assert refused.reason is RejectReason.NOT_DETERMINISTIC
    assert choose_to_resume([unsteady], wish(LENIENT), "e1") == Chosen("e1", True)
    assert choose_to_resume([unsteady, candidate("2")], wish(LENIENT), "e1") == Chosen("e2")


def test_a_copy_of_an_earlier_version_says_nothing_of_its_configuration() -> None:
    parked = Parked("p", ParkKind.FILE, "n1", "j1", 7, 14, EQUAL)
    text = parked_to_json(parked)
    assert text is not None
    assert parked_from_json(text) == parked
    parts = json.loads(text)
    del parts["fingerprint"]
    earlier = parked_from_json(json.dumps(parts))
    assert earlier is not None
    assert earlier.fingerprint is None


# --- the record --------------------------------------------------------------------------------


def test_one_that_resumes_is_counted_where_it_is_to_be(tmp_path: Path) -> None:
    """Else two sessions could be promised the time of one at another engine of the node."""
    db = open_directory(str(tmp_path / "directory.db"))
    db.row_factory = sqlite3.Row
    node_table.put_node(db, node("1"))
    node_table.put_engine(db, engine("1"))
    node_table.put_engine(db, replace(engine("1"), engine_id="e1b"))
    paced = contract(period_ms=100.0)
    gone = session(state=SessionState.SUSPENDED, contract=paced, owner_incarnation="", slot=None)
    session_table.insert_session(db, gone)
    party = Party("e1b", "i1", "n1", "j1")
    resuming = Suspension("r", "s", SuspensionVerb.RESUME, ParkKind.FILE, "p", party, epoch=1)
    suspension_table.insert_suspension(db, SuspensionEntry(resuming))
    there = session_table.sessions_now(db)
    assert [len(paces_at(name, there, ())) for name in ("e1", "e1b")] == [0, 1]
    db.close()
