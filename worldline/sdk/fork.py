"""Fork: branches of a live session, as a client asks for them."""

from __future__ import annotations

import uuid
from dataclasses import replace

from worldline.contract import Contract, ServiceClass, contract_to_proto
from worldline.errors import InvalidInput
from worldline.fields import whole
from worldline.sdk.calls import Caller
from worldline.sdk.records import SessionInfo, session_from_proto
from worldline.sdk.rejected import Rejected
from worldline.v1 import placement_pb2, placement_pb2_grpc
from worldline.verdict import verdict_from_proto

#: Of one request; every branch takes a slot of its parent's device.
BRANCHES_MAX = 64
_NUMBER_MAX = (1 << 32) - 1


async def fork(
    session_id: str,
    count: int,
    *,
    contract: Contract | None,
    same_noise: bool,
    first_branch: int | None,
    caller: Caller,
    placement: placement_pb2_grpc.PlacementServiceStub,
    timeout_s: float,
) -> tuple[SessionInfo, ...]:
    """The branches, by number; see `Session.fork`.

    Raises:
        Rejected: there is no room for all of them.
        InvalidInput: `count` or `first_branch` is out of range.
    """
    request = placement_pb2.ForkSessionRequest(
        session_id=session_id,
        count=whole(count, "count", at_least=1, at_most=BRANCHES_MAX),
        contract=None if contract is None else contract_to_proto(contract),
        same_noise=same_noise,
        first_branch=(
            None
            if first_branch is None
            else whole(first_branch, "first_branch", at_most=_NUMBER_MAX)
        ),
        idempotency_key=uuid.uuid4().hex,
    )
    response = await caller.retried(placement.ForkSession, request, timeout_s=timeout_s)
    verdict = verdict_from_proto(response.verdict)
    if not verdict.admitted:
        raise Rejected(verdict)
    branches = tuple(session_from_proto(one) for one in response.branches)
    if len(branches) != count:
        raise InvalidInput(
            f"placement answered with {len(branches)} branches of {count}", field="branches"
        )
    return branches


def planner_contract(contract: Contract) -> Contract:
    """What a planner's branches are promised where nobody says: the parent's own contract, as a
    planner's (C2a) and at the planner's pace.
    """
    return replace(contract, service_class=ServiceClass.C2A_PLANNER, period_ms=0.0, cohort="")
