"""Replayer: where a run may be re-executed, and what its session is promised."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from tests.unit.recording.runs import CONTRACT, FINGERPRINT, block, header
from worldline.contract import Contract, DecodeTier, DeterminismTier, ServiceClass
from worldline.errors import Conflict, NotFound
from worldline.recording.replayer import ReplayWish, _node, _steps, replay_contract
from worldline.sdk import Client, Engine, Node
from worldline.state.manifest import Fingerprint

T0, T1 = DeterminismTier.T0_BITWISE, DeterminismTier.T1_SCHEDULE_STABLE
OTHER = Fingerprint.of({"threads": "2", "torch": "2"})
FAR = Fingerprint.of({"threads": "2", "torch": "3"})


def node(number: int, fingerprint: Fingerprint, **facts: Any) -> Node:
    name = f"node-{number}"
    engine = Engine(
        engine_id=f"{name}-cpu",
        node_id=name,
        address="",
        device="cpu",
        alive=facts.pop("engine_alive", True),
        sessions=facts.pop("sessions", 0),
        fingerprint=fingerprint.hash.hex(),
        device_uuid="",
        numa_node=None,
        facts=fingerprint.facts,
    )
    known = {"mover_address": "", "alive": True, "devices": (), "host_id": "h"}
    return Node(node_id=name, engines=(engine,), **{**known, **facts})


async def chosen(*nodes: Node, node_id: str = "", tier: DeterminismTier = T0) -> str:
    class Fleet:
        async def nodes(self) -> tuple[Node, ...]:
            return nodes

    return await _node(cast(Client, Fleet()), header(), ReplayWish(node_id=node_id, tier=tier))


async def test_a_replay_goes_to_the_least_used_engine_that_equals_the_runs() -> None:
    assert await chosen(node(1, OTHER), node(2, FINGERPRINT)) == "node-2"
    busy, free = node(1, FINGERPRINT, sessions=2), node(2, FINGERPRINT)
    assert await chosen(busy, free) == "node-2"
    assert await chosen(busy, free, node_id="node-1") == "node-1"
    dead = node(1, FINGERPRINT, engine_alive=False)
    assert await chosen(dead, free) == await chosen(node(1, FINGERPRINT, alive=False), free)


async def test_an_unequal_engine_is_refused_at_t0_in_words_and_taken_at_t1() -> None:
    with pytest.raises(Conflict) as caught:
        await chosen(node(1, FAR), node(2, OTHER))
    assert (caught.value.reason, caught.value.field) == ("FINGERPRINT_MISMATCH", "tier")
    for said in ("node-2-cpu comes nearest", "threads: '1' here, '2' there", "--threads", "t1"):
        assert said in caught.value.message
    assert await chosen(node(1, OTHER), tier=T1) == ""
    assert await chosen(node(1, OTHER), node_id="node-1", tier=T1) == "node-1"


async def test_a_cluster_without_engines_is_said_so() -> None:
    with pytest.raises(NotFound, match="in this cluster"):
        await chosen()
    with pytest.raises(NotFound, match="on node node-9"):
        await chosen(node(1, FINGERPRINT), node_id="node-9")


def test_a_replay_is_c4_paced_by_its_client_and_decoded_alike() -> None:
    recorded = Contract(
        ServiceClass.C1_INTERACTIVE,
        900.0,
        period_ms=400.0,
        quality_floor_steps=2,
        decode_tier=DecodeTier.HALF,
        tier_drop_allowed=True,
    )
    assert replay_contract(recorded, T0) == Contract(
        ServiceClass.C4_REPLAY, 900.0, decode_tier=DecodeTier.HALF
    )
    assert replay_contract(CONTRACT, T1).determinism_tier is T1


def test_degraded_blocks_are_asked_for_with_their_steps() -> None:
    assert _steps(block(0)) == 0
    assert _steps(dataclasses.replace(block(0), steps=2)) == 2
