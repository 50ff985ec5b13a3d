"""Room: admission's answer about a session, and the rows that are measured for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.placement.records import SessionState
from services.placement.room import paces_at
from tests.rows import row
from tests.unit.placement.cluster import Cluster, running_cluster
from tests.unit.placement.makers import contract, session
from tests.unit.placement.suspensions import resume, suspend
from worldline.admissibility.profile_row import RequestShape
from worldline.admissibility.row_codec import row_from_proto, row_to_proto
from worldline.errors import CapacityExhausted
from worldline.v1 import placement_pb2
from worldline.verdict import RejectReason

PACED = contract(period_ms=400.0)
TINY = RequestShape("tiny")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as one:
        yield one


async def rows_listed(cluster: Cluster, engine_id: str) -> list[str]:
    answer = await cluster.ask("ListNodes", placement_pb2.ListNodesRequest())
    (engine,) = (one for node in answer.nodes for one in node.engines if one.engine_id == engine_id)
    return [row_from_proto(one).shape.name for one in engine.rows]


async def test_a_period_is_promised_after_its_quanta_were_measured(cluster: Cluster) -> None:
    answer = await cluster.open(of=PACED)
    assert answer.session.state == "live"
    assert cluster.engines["e1"].measured == [TINY]
    first, second = cluster.admission.loads
    assert not first.rows
    assert [row_from_proto(one).shape for one in second.rows] == [TINY]
    assert await rows_listed(cluster, "e1") == ["tiny/full"]
    assert (await cluster.open(of=PACED)).session.state == "live"
    assert cluster.engines["e1"].measured == [TINY], "once: the row is there"


async def test_a_client_that_paces_its_world_needs_no_row(cluster: Cluster) -> None:
    assert (await cluster.open()).session.state == "live"
    assert cluster.engines["e1"].measured == []


async def test_what_cannot_be_measured_is_not_admitted(cluster: Cluster) -> None:
    await cluster.open()  # its preset's size is known from now on
    cluster.engines["e1"].faults.fail("e1.WarmWorld", CapacityExhausted("all are lent"))
    answer = await cluster.open(of=PACED)
    assert answer.verdict.reason == RejectReason.QUANTUM_UNMEASURED
    assert answer.verdict.retry_after_ms > 0
    assert not answer.HasField("session")
    listed = await cluster.ask("ListSessions", placement_pb2.ListSessionsRequest())
    assert len(listed.sessions) == 1


async def test_rows_come_with_renewals_and_are_listed(cluster: Cluster) -> None:
    request = placement_pb2.RenewEngineRequest(
        engine_id="e1", incarnation="i1", rows=[row_to_proto(row("tiny"))]
    )
    await cluster.ask("RenewEngine", request)
    assert await rows_listed(cluster, "e1") == ["tiny/full"]
    assert await rows_listed(cluster, "e2") == []
    await cluster.open(of=PACED)
    assert cluster.engines["e1"].measured == []


async def test_two_at_once_are_decided_one_after_the_other(cluster: Cluster) -> None:
    """Else both would be held against the same free time, and both be promised it."""
    gate = cluster.faults.hold("AdmitSession")
    both = [asyncio.ensure_future(cluster.open(of=PACED)) for _ in range(2)]
    await cluster.faults.reach("AdmitSession")
    gate.set()
    answers = await asyncio.gather(*both)
    assert [one.session.state for one in answers] == ["live", "live"]
    residents = [len(one.residents) for one in cluster.admission.loads]
    assert residents[-1] == 1, "the second was asked about with the first counted"


async def test_two_that_resume_at_once_are_decided_one_after_the_other(cluster: Cluster) -> None:
    names = [(await cluster.open(of=PACED)).session.session_id for _ in range(2)]
    for name in names:
        await suspend(cluster, name)
    asked = len(cluster.admission.loads)
    gate = cluster.faults.hold("AdmitSession")
    both = [asyncio.ensure_future(resume(cluster, name)) for name in names]
    await cluster.faults.reach("AdmitSession")
    # The other one has come as far as it can: a call that needs no turn is answered meanwhile.
    await rows_listed(cluster, "e1")
    gate.set()
    answers = await asyncio.gather(*both)
    assert [one.session.state for one in answers] == ["live", "live"]
    residents = [len(one.residents) for one in cluster.admission.loads[asked:]]
    assert residents == [0, 1], "the second was asked about with the first counted"


def test_who_moves_there_is_counted_there_already() -> None:
    paced = contract(period_ms=100.0)
    here = session(session_id="s1", contract=paced)
    there = session(session_id="s2", owner="e2", node_id="n2", contract=paced)
    free = session(session_id="s3", owner="e2", node_id="n2")
    gone = session(session_id="s4", owner="e2", contract=paced, state=SessionState.SUSPENDED)
    sessions = (here, there, free, gone)
    assert len(paces_at("e2", sessions, ())) == 1
    assert len(paces_at("e2", sessions, {"s1"})) == 2
    assert len(paces_at("e1", sessions, ())) == 1
    assert len(paces_at("e2", (replace(here, owner="e2"), there), {"s1"})) == 2, "once"
