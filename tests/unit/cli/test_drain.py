"""The drain commands against an in-process placement: what they say, and their exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.unit.cli.test_commands import Behind, invoke
from tests.unit.sdk.fakes import Stage
from worldline.errors import NotFound, Unavailable
from worldline.v1 import placement_pb2

Left = placement_pb2.DrainRecord.Left


@pytest.fixture
def stage() -> Iterator[Stage]:
    behind = Behind()
    yield behind.stage
    behind.close()


def record(state: str, *left: Left, moved: int = 0, node: str = "node-1") -> object:
    return placement_pb2.DrainRecord(
        node_id=node, state=state, sessions_moved=moved, elapsed_ms=1_500, left=left
    )


MOVING = Left(session_id="s-1", state="moving", target_node_id="node-2", move_id="move-1")
FULL = Left(session_id="s-2", state="live", reason="TARGET_FULL", message="no slot is free")


def test_a_drain_is_followed_to_its_end_over_a_restart_of_placement(stage: Stage) -> None:
    placement = stage.placement
    placement.drains = [
        [record("draining", MOVING, FULL)],
        [record("draining", FULL, moved=1)],
        [record("drained", moved=2)],
    ]
    placement.script["DescribeDrain"] = [None, Unavailable("restarting")]
    result = invoke("drain", "node-1", "--deadline", "90s", "--watch", stage=stage)
    assert result.exit_code == 0, result.output
    assert result.stdout == "node node-1 drained after 1.5 s: 2 sessions moved\n"
    assert "node-1 draining: 0 moved, s-1 to node-2, 1 waiting (TARGET_FULL)" in result.stderr
    assert "node-1 draining: 1 moved, 1 waiting (TARGET_FULL)" in result.stderr
    asked = dict(placement.calls)["Drain"]
    assert (list(asked.node_ids), asked.deadline_ms) == (["node-1"], 90_000)
    described = [request for name, request in placement.calls if name == "DescribeDrain"]
    assert (described[0].seen, described[0].wait_ms) == ("", 0)
    assert described[-1].seen
    assert described[-1].wait_ms > 0


def test_who_is_left_is_listed_with_the_reason_and_the_status_says_so(stage: Stage) -> None:
    stage.placement.drains = [[record("incomplete", FULL, moved=1)]]
    result = invoke("drain", "node-1", stage=stage)
    assert result.exit_code == 1
    assert "node node-1 incomplete after 1.5 s: 1 session moved, 1 left" in result.stdout
    for text in ("s-2", "TARGET_FULL", "no slot is free"):
        assert text in result.stdout


def test_json_is_one_document_and_a_line_each_while_watched(stage: Stage) -> None:
    stage.placement.drains = [[record("drained", moved=2)]]
    result = invoke("drain", "node-1", "--json", stage=stage)
    (document,) = json.loads(result.stdout)
    assert (document["state"], document["sessions_moved"], document["left"]) == ("drained", 2, [])
    stage.placement.drains = [
        [record("draining", MOVING)],
        [record("draining", MOVING)],
        [record("drained", moved=1)],
    ]
    result = invoke("drain", "node-1", "--json", "--watch", stage=stage)
    states = [json.loads(line)["state"] for line in result.stdout.splitlines()]
    assert states == ["draining", "drained"], "each change once"


def test_a_node_that_somebody_undrained_meanwhile_is_not_drained(stage: Stage) -> None:
    stage.placement.drains = [[record("draining", MOVING)], []]
    assert invoke("drain", "node-1", stage=stage).exit_code == 1


def test_an_unknown_node_is_status_4(stage: Stage) -> None:
    stage.placement.script["Drain"] = [NotFound("node node-9 is not registered")]
    assert invoke("drain", "node-9", stage=stage).exit_code == 4


def test_a_bad_deadline_is_status_2(stage: Stage) -> None:
    result = invoke("drain", "node-1", "--deadline", "soon", stage=stage)
    assert result.exit_code == 2
    assert "[--deadline]" in result.stderr


def test_undrain_says_which_node_took_sessions_all_along(stage: Stage) -> None:
    result = invoke("undrain", "node-1", "node-2", stage=stage)
    assert result.exit_code == 0
    assert result.stdout == "node node-1 takes sessions\nnode node-2 takes sessions already\n"
    result = invoke("undrain", "node-1", "--json", stage=stage)
    assert json.loads(result.stdout) == {"undrained": ["node-1"]}
