"""`worldline fork` against an in-process placement: what it asks for, and what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.unit.cli.test_commands import Behind, invoke
from tests.unit.sdk.fakes import Stage
from worldline.cli.fork import _contract
from worldline.contract import Contract, ServiceClass
from worldline.errors import InvalidInput
from worldline.v1 import contract_pb2, move_pb2

OWN = Contract(service_class=ServiceClass.C2B_COHORT, horizon_ms=9.0, period_ms=5.0, cohort="w")


@pytest.fixture
def stage() -> Iterator[Stage]:
    behind = Behind()
    yield behind.stage
    behind.close()


def test_branches_are_listed(stage: Stage) -> None:
    done = invoke("fork", "session-1", "--count", "2", stage=stage)
    assert done.exit_code == 0, done.stderr
    assert "session session-1 branched at block 0, on node-0" in done.stdout
    assert "branch-1" in done.stdout
    assert "its own" in done.stdout
    (request,) = [one for name, one in stage.placement.calls if name == "ForkSession"]
    assert (request.count, request.same_noise) == (2, False)
    assert not request.HasField("contract")


def test_what_is_asked_for_is_sent(stage: Stage) -> None:
    options = ["--same-noise", "--first-branch", "0", "--class", "c2b", "--cohort", "w", "--json"]
    done = invoke("fork", "session-1", *options, stage=stage)
    assert done.exit_code == 0, done.stderr
    (branch,) = json.loads(done.stdout)
    assert branch["forked_from"] == {
        "session_id": "session-1",
        "epoch": 1,
        "block_index": 0,
        "branch": 0,
        "same_noise": True,
    }
    (request,) = [one for name, one in stage.placement.calls if name == "ForkSession"]
    assert request.HasField("first_branch")
    assert request.contract.cohort == "w"
    assert request.contract.service_class == contract_pb2.SERVICE_CLASS_C2B_COHORT


def test_no_room_is_exit_status_3(stage: Stage) -> None:
    stage.placement.verdict = move_pb2.Verdict(
        reason=move_pb2.REJECT_REASON_DEVICE_FULL, explanation="room for 1", retry_after_ms=5
    )
    done = invoke("fork", "session-1", "--count", "3", stage=stage)
    assert done.exit_code == 3
    assert "DEVICE_FULL: room for 1 (retry after 5 ms)" in done.stderr


def test_bad_options_are_exit_status_2(stage: Stage) -> None:
    for options, said in (
        (["--count", "65"], "count"),
        (["--class", "c9"], "c1, c2a, c2b"),
        (["--cohort", "w"], "contract.cohort"),
    ):
        done = invoke("fork", "session-1", *options, stage=stage)
        assert done.exit_code == 2
        assert said in done.stderr


def test_a_contract_is_the_sessions_own_but_for_what_is_said() -> None:
    assert _contract(OWN, "", None, "") is None
    assert _contract(OWN, "", None, "v") == replace(OWN, cohort="v")
    assert _contract(OWN, "c2b", 0.0, "") == replace(OWN, period_ms=0.0)
    planner = _contract(OWN, "c2a", None, "")
    assert planner == replace(OWN, service_class=ServiceClass.C2A_PLANNER, cohort="")
    with pytest.raises(InvalidInput):
        _contract(OWN, "c2a", None, "v")
