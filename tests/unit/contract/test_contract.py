"""Contracts that hold round-trip; contracts that contradict themselves cannot be built."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldline.contract import (
    DEGRADED_CONSECUTIVE_MAX,
    HORIZON_MS_MAX,
    HORIZON_MS_MIN,
    PERIOD_MS_MIN,
    QUALITY_FLOOR_STEPS_MAX,
    Contract,
    DecodeTier,
    DeterminismTier,
    ServiceClass,
    contract_from_proto,
    contract_to_proto,
)
from worldline.errors import InvalidInput
from worldline.v1 import contract_pb2

GOOD = Contract(ServiceClass.C1_INTERACTIVE, horizon_ms=400.0, period_ms=400.0)


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    """Any contract that does not contradict itself."""
    service_class = draw(st.sampled_from(ServiceClass))
    degrades = service_class is not ServiceClass.C4_REPLAY
    floor = draw(st.integers(0, QUALITY_FLOOR_STEPS_MAX)) if degrades else 0
    in_a_row = draw(st.integers(0, DEGRADED_CONSECUTIVE_MAX)) if floor else 0
    is_cohort = service_class is ServiceClass.C2B_COHORT
    return Contract(
        service_class=service_class,
        horizon_ms=draw(st.floats(HORIZON_MS_MIN, HORIZON_MS_MAX)),
        period_ms=draw(st.just(0.0) | st.floats(PERIOD_MS_MIN, HORIZON_MS_MAX)),
        quality_floor_steps=floor,
        determinism_tier=DeterminismTier.T0_BITWISE,
        decode_tier=draw(st.sampled_from(DecodeTier)),
        tier_drop_allowed=draw(st.booleans()),
        degraded_consecutive_max=in_a_row,
        cohort=draw(st.sampled_from(["", "wave-1", "rollouts.7"])) if is_cohort else "",
    )


@given(contracts())
def test_round_trips(contract: Contract) -> None:
    wire = contract_to_proto(contract).SerializeToString()
    assert contract_from_proto(contract_pb2.Contract.FromString(wire)) == contract


@pytest.mark.parametrize("bad", [0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 1e-300])
def test_refuses_a_horizon_that_is_no_duration(bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        dataclasses.replace(GOOD, horizon_ms=bad)
    assert caught.value.field == "contract.horizon_ms"


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, -math.inf, 1e300, 1e-300, 5e-324])
def test_refuses_a_period_that_is_no_duration(bad: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        dataclasses.replace(GOOD, period_ms=bad)
    assert caught.value.field == "contract.period_ms"


@given(st.floats() | st.integers())
def test_any_horizon_is_in_range_or_refused_with_its_field(horizon_ms: float) -> None:
    if HORIZON_MS_MIN <= horizon_ms <= HORIZON_MS_MAX:
        contract = dataclasses.replace(GOOD, horizon_ms=horizon_ms)
        assert contract.horizon_ms == horizon_ms
        assert type(contract.horizon_ms) is float
        return
    with pytest.raises(InvalidInput) as caught:
        dataclasses.replace(GOOD, horizon_ms=horizon_ms)
    assert caught.value.field == "contract.horizon_ms"


@pytest.mark.parametrize("bad", [-1, QUALITY_FLOOR_STEPS_MAX + 1, True, 1.5])
def test_refuses_a_quality_floor_out_of_range(bad: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        dataclasses.replace(GOOD, quality_floor_steps=bad)
    assert caught.value.field == "contract.quality_floor_steps"


def test_no_contract_degrades_unless_it_says_so() -> None:
    assert GOOD.quality_floor_steps == 0
    old = contract_pb2.Contract(
        service_class="SERVICE_CLASS_C1_INTERACTIVE",
        horizon_ms=400.0,
        determinism_tier="DETERMINISM_TIER_T0_BITWISE",
        decode_tier="DECODE_TIER_FULL",
    )
    assert contract_from_proto(old) == dataclasses.replace(GOOD, period_ms=0.0)


@pytest.mark.parametrize("bad", [-1, DEGRADED_CONSECUTIVE_MAX + 1, True, 1.5])
def test_refuses_a_limit_of_degraded_blocks_out_of_range(bad: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        dataclasses.replace(GOOD, quality_floor_steps=2, degraded_consecutive_max=bad)
    assert caught.value.field == "contract.degraded_consecutive_max"


def test_refuses_a_limit_of_what_is_not_allowed() -> None:
    with pytest.raises(InvalidInput, match="set quality_floor_steps too") as caught:
        dataclasses.replace(GOOD, degraded_consecutive_max=3)
    assert caught.value.field == "contract.degraded_consecutive_max"


def test_refuses_a_replay_that_may_be_degraded() -> None:
    with pytest.raises(InvalidInput, match="another run") as caught:
        dataclasses.replace(GOOD, service_class=ServiceClass.C4_REPLAY, quality_floor_steps=2)
    assert caught.value.field == "contract.quality_floor_steps"


@pytest.mark.parametrize("member", [it for it in ServiceClass if it is not ServiceClass.C2B_COHORT])
def test_only_c2b_advances_as_a_cohort(member: ServiceClass) -> None:
    with pytest.raises(InvalidInput) as caught:
        dataclasses.replace(GOOD, service_class=member, cohort="wave-1")
    assert caught.value.field == "contract.cohort"


@pytest.mark.parametrize("bad", ["a b", "\n", "x" * 1000])
def test_refuses_a_cohort_that_is_no_name(bad: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        dataclasses.replace(GOOD, service_class=ServiceClass.C2B_COHORT, cohort=bad)
    assert caught.value.field == "contract.cohort"


def test_refuses_c4_at_t2() -> None:
    with pytest.raises(InvalidInput) as caught:
        Contract(
            ServiceClass.C4_REPLAY, horizon_ms=1e3, determinism_tier=DeterminismTier.T2_STATISTICAL
        )
    assert caught.value.field == "contract.determinism_tier"


def test_refuses_c4_at_t2_given_as_plain_numbers() -> None:
    with pytest.raises(InvalidInput):
        Contract(5, horizon_ms=1e3, determinism_tier=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("tier", [DeterminismTier.T1_SCHEDULE_STABLE, DeterminismTier.T0_BITWISE])
def test_allows_c4_at_t0_and_t1(tier: DeterminismTier) -> None:
    contract = Contract(ServiceClass.C4_REPLAY, horizon_ms=1e3, determinism_tier=tier)
    assert contract.determinism_tier is tier


@pytest.mark.parametrize(
    "tier", [DeterminismTier.T1_SCHEDULE_STABLE, DeterminismTier.T2_STATISTICAL]
)
def test_only_t0_can_drop_a_tier(tier: DeterminismTier) -> None:
    with pytest.raises(InvalidInput) as caught:
        dataclasses.replace(GOOD, determinism_tier=tier, tier_drop_allowed=True)
    assert caught.value.field == "contract.tier_drop_allowed"


@pytest.mark.parametrize("name", ["service_class", "determinism_tier", "decode_tier"])
@pytest.mark.parametrize("number", [0, 7, 2**31 - 1, -1])
def test_names_the_enum_that_is_unspecified_or_unknown(name: str, number: int) -> None:
    message = contract_to_proto(GOOD)
    setattr(message, name, number)
    with pytest.raises(InvalidInput) as caught:
        contract_from_proto(message)
    assert caught.value.field == f"contract.{name}"


def test_an_empty_message_is_refused() -> None:
    with pytest.raises(InvalidInput):
        contract_from_proto(contract_pb2.Contract())


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (ServiceClass, contract_pb2.ServiceClass, "SERVICE_CLASS_"),
        (DeterminismTier, contract_pb2.DeterminismTier, "DETERMINISM_TIER_"),
        (DecodeTier, contract_pb2.DecodeTier, "DECODE_TIER_"),
    ],
)
def test_enums_agree_with_the_proto(ours: type, theirs: object, prefix: str) -> None:
    numbers = {prefix + member.name: int(member) for member in ours}  # type: ignore[attr-defined]
    assert numbers | {prefix + "UNSPECIFIED": 0} == dict(theirs.items())  # type: ignore[attr-defined]
