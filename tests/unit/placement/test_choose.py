"""Choice of targets and engines: filter, then policy."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from services.placement.choose import (
    REFUSALS_SHOWN_MAX,
    TARGETS_MAX,
    Candidate,
    Chosen,
    MoveWish,
    choose_engine,
    choose_targets,
    no_room,
)
from services.placement.device import Place
from services.placement.ring import distance
from tests.unit.placement.makers import EQUAL, OTHER_TORCH, OTHER_WEIGHTS, candidate, contract
from worldline.contract import DeterminismTier
from worldline.errors import CapacityExhausted, InvalidInput
from worldline.verdict import RejectReason, Verdict


def wish(**changes: object) -> MoveWish:
    fields: dict[str, object] = {
        "source_node_id": "n0",
        "source": Place("h0"),
        "fingerprint": EQUAL,
        "contract": contract(),
        "extent_bytes": 100,
    }
    return MoveWish(**fields | changes)  # type: ignore[arg-type]


def best(fleet: tuple[Candidate, ...], wished: MoveWish) -> Chosen | Verdict:
    """The first of the targets."""
    answer = choose_targets(fleet, wished)
    return answer if isinstance(answer, Verdict) else answer[0]


def names(answer: tuple[Chosen, ...] | Verdict) -> list[str]:
    assert not isinstance(answer, Verdict), answer
    return [one.engine_id for one in answer]


def reason(answer: Chosen | Verdict) -> RejectReason | None:
    assert isinstance(answer, Verdict), answer
    return answer.reason


def test_most_free_slots_then_the_source_s_ring_whatever_the_order() -> None:
    fleet = [candidate("3", slots_free=2), candidate("2", slots_free=2), candidate("1")]
    for order in itertools.permutations(fleet):
        assert names(choose_targets(order, wish())) == ["e3", "e2", "e1"]
        # n2 comes before n3 for whoever is between the two.
        assert distance("n10", "n2") < distance("n10", "n3")
        assert names(choose_targets(order, wish(source_node_id="n10"))) == ["e2", "e3", "e1"]


def test_never_the_source_even_when_named() -> None:
    fleet = (candidate("0", slots_free=4), candidate("1"))
    assert best(fleet, wish()) == Chosen("e1")
    assert reason(best(fleet, wish(node_id="n0"))) is RejectReason.NO_TARGET


@pytest.mark.parametrize(
    ("changes", "wanted", "retries"),
    [
        ({"alive": False}, RejectReason.NO_TARGET, True),
        ({"slots_free": 0}, RejectReason.TARGET_FULL, True),
        ({"slot_bytes": 99}, RejectReason.STATE_TOO_LARGE, False),
        ({"fingerprint": OTHER_TORCH}, RejectReason.FINGERPRINT_MISMATCH, False),
        ({"fingerprint": OTHER_TORCH, "slots_free": 0}, RejectReason.FINGERPRINT_MISMATCH, False),
    ],
)
def test_each_filter_says_no_with_its_reason(
    changes: dict[str, object], wanted: RejectReason, retries: bool
) -> None:
    answer = best((candidate("1", **changes),), wish())
    assert reason(answer) is wanted
    assert isinstance(answer, Verdict)
    assert (answer.retry_after_ms > 0) is retries


def test_exactly_the_slot_size_fits() -> None:
    assert best((candidate("1", slot_bytes=100),), wish()) == Chosen("e1")


def test_every_target_that_fits_is_named_the_best_first() -> None:
    fleet = (
        candidate("1"),
        candidate("2", slots_free=3),
        candidate("3", place=Place("h0")),
        candidate("4", slots_free=0),
        candidate("5", alive=False),
    )
    for order in itertools.permutations(fleet):
        assert names(choose_targets(order, wish())) == ["e3", "e2", "e1"]


def test_a_named_node_is_the_only_one() -> None:
    fleet = (candidate("1"), candidate("2"), candidate("3", node_id="n1"))
    assert names(choose_targets(fleet, wish(node_id="n1"))) == ["e1", "e3"]


def test_slots_that_moves_under_way_take_are_left_to_admission() -> None:
    """It counts its holds itself, and may know that one of them ends in time."""
    taken = candidate("1", slots_free=0, slots_for_moves=1)
    assert names(choose_targets((taken,), wish())) == ["e1"]
    assert reason(choose_engine((taken,), "", 100, "tiny")) is RejectReason.DEVICE_FULL


def test_targets_are_bounded_and_spread_over_nodes() -> None:
    """A node of many engines, all better than what other nodes have, does not crowd them out."""
    crowd = [candidate(f"a{one:02}", node_id="n1", slots_free=4) for one in range(TARGETS_MAX)]
    others = [candidate(f"b{one}") for one in range(3)]
    answer = names(choose_targets((*others, *crowd), wish()))
    assert len(answer) == TARGETS_MAX
    assert sorted(answer[-3:]) == ["eb0", "eb1", "eb2"]
    assert answer[:-3] == [one.engine_id for one in crowd[: TARGETS_MAX - 3]]


def test_a_dropped_tier_is_never_offered_beside_an_equal_one() -> None:
    allowed = wish(contract=contract(tier_drop_allowed=True))
    fleet = (candidate("1", fingerprint=OTHER_TORCH), candidate("2"), candidate("3"))
    assert choose_targets(fleet, allowed) == (Chosen("e3"), Chosen("e2"))
    others = (fleet[0], candidate("4", fingerprint=OTHER_TORCH))
    assert choose_targets(others, allowed) == (
        Chosen("e1", tier_dropped=True),
        Chosen("e4", tier_dropped=True),
    )


def test_a_mismatch_names_the_fact() -> None:
    answer = best((candidate("1", fingerprint=OTHER_TORCH),), wish())
    assert isinstance(answer, Verdict)
    assert "torch: '2.13.0' here, '2.12.0' there" in answer.explanation


def test_several_reasons_become_no_target_with_each_of_them() -> None:
    fleet = (candidate("1", slots_free=0), candidate("2", fingerprint=OTHER_TORCH))
    answer = best(fleet, wish())
    assert reason(answer) is RejectReason.NO_TARGET
    assert isinstance(answer, Verdict)
    assert "slots of n1" in answer.explanation
    assert "e2" in answer.explanation


def test_of_many_refusals_a_handful_is_told_and_the_rest_counted() -> None:
    full = [candidate(f"{one:03}", slots_free=0) for one in range(500)]
    dead = [candidate(f"{one:03}", alive=False) for one in range(500, 990)]
    large = [candidate(f"{one:03}", slot_bytes=99) for one in range(990, 1000)]
    answer = choose_targets((*full, *dead, *large), wish())
    assert isinstance(answer, Verdict)
    assert answer.reason is RejectReason.NO_TARGET
    assert answer.numbers["candidates"] == 1000
    told = answer.explanation.removeprefix("no node can take this session: ").split("; ")
    assert len(told) == REFUSALS_SHOWN_MAX + 2
    assert any("slots of n000" in one for one in told)
    assert any(one == "e500 is not alive" for one in told)
    assert any(one.startswith("n990 has slots of 99 bytes") for one in told)
    assert told[-2:] == [
        "and 995 more",
        "of all 1000: 500 TARGET_FULL, 490 NO_TARGET, 10 STATE_TOO_LARGE",
    ]


def test_each_source_is_offered_those_that_follow_it() -> None:
    fleet = [candidate(f"{one:02}") for one in range(3 * TARGETS_MAX)]
    offered = {
        one.node_id: names(choose_targets(fleet, wish(source_node_id=one.node_id))) for one in fleet
    }
    for source, answer in offered.items():
        following = sorted(fleet, key=lambda one: distance(source, one.node_id))[1:]
        assert answer == [one.engine_id for one in following[:TARGETS_MAX]]
    # As many sources as targets, for every receiver: none is more wanted than another.
    wanted = Counter(name for answer in offered.values() for name in answer)
    assert set(wanted.values()) == {TARGETS_MAX}


def test_an_empty_fleet_is_no_target() -> None:
    assert reason(best((), wish())) is RejectReason.NO_TARGET
    assert reason(choose_engine((), "", 0, "tiny")) is RejectReason.NO_TARGET


def test_a_tier_drops_only_where_the_contract_allows_it() -> None:
    other = (candidate("1", fingerprint=OTHER_TORCH),)
    allowed = wish(contract=contract(tier_drop_allowed=True))
    refused = best(other, wish())
    assert isinstance(refused, Verdict)
    assert "To make them equal" in refused.explanation
    assert "drop to T1 (tier_drop_allowed)" in refused.explanation
    world = best((candidate("1", fingerprint=OTHER_WEIGHTS),), wish())
    assert isinstance(world, Verdict)
    assert "tier_drop_allowed" not in world.explanation
    assert best(other, allowed) == Chosen("e1", tier_dropped=True)
    # An equal one is preferred, however full.
    both = (*other, candidate("2"))
    crowded = (candidate("1", fingerprint=OTHER_TORCH, slots_free=4), candidate("2"))
    assert best(both, allowed) == best(crowded, allowed) == Chosen("e2")


def test_a_t0_session_goes_nowhere_where_its_preset_differs_from_itself() -> None:
    """Not even between equals: it is not equal to itself."""
    differing = candidate("1", differing=frozenset({"tiny"}))
    answer = best((differing,), wish(preset="tiny"))
    assert isinstance(answer, Verdict)
    assert answer.reason is RejectReason.NOT_DETERMINISTIC
    assert "e1 does not generate tiny twice with the same bits" in answer.explanation
    assert "drop to T1 (tier_drop_allowed)" in answer.explanation
    assert best((differing,), wish(preset="small")) == Chosen("e1")
    allowed = wish(preset="tiny", contract=contract(tier_drop_allowed=True))
    assert best((differing,), allowed) == Chosen("e1", tier_dropped=True)
    assert best((differing, candidate("2")), allowed) == Chosen("e2")
    schedule = contract(determinism_tier=DeterminismTier.T1_SCHEDULE_STABLE)
    assert best((differing,), wish(preset="tiny", contract=schedule)) == Chosen("e1")
    other = differing._replace(fingerprint=OTHER_WEIGHTS)
    assert reason(best((other,), allowed)) is RejectReason.FINGERPRINT_MISMATCH


def test_a_t0_session_opens_nowhere_where_its_preset_differs_from_itself() -> None:
    differing = candidate("1", slots_free=4, differing=frozenset({"tiny"}))
    exact, lenient = contract(), contract(tier_drop_allowed=True)
    refused = choose_engine((differing,), "", 100, "tiny", exact)
    assert reason(refused) is RejectReason.NOT_DETERMINISTIC
    assert choose_engine((differing,), "", 100, "tiny", lenient) == Chosen("e1", tier_dropped=True)
    assert choose_engine((differing,), "", 100, "small", exact) == Chosen("e1")
    fleet = (differing, candidate("2", utilization=0.9))
    for one in (exact, lenient):
        assert choose_engine(fleet, "", 100, "tiny", one) == Chosen("e2")
    schedule = contract(determinism_tier=DeterminismTier.T1_SCHEDULE_STABLE)
    assert choose_engine(fleet, "", 100, "tiny", schedule) == Chosen("e1")


def test_a_t1_session_needs_no_equal_fingerprint_and_drops_nothing() -> None:
    schedule = contract(determinism_tier=DeterminismTier.T1_SCHEDULE_STABLE)
    answer = best((candidate("1", fingerprint=OTHER_TORCH),), wish(contract=schedule))
    assert answer == Chosen("e1")


def test_to_a_t1_session_an_equal_fingerprint_is_no_better_than_another() -> None:
    schedule = contract(determinism_tier=DeterminismTier.T1_SCHEDULE_STABLE)
    fleet = (candidate("1"), candidate("2", fingerprint=OTHER_TORCH, place=Place("h0")))
    assert names(choose_targets(fleet, wish(contract=schedule))) == ["e2", "e1"]


def test_other_weights_are_another_world_at_every_tier() -> None:
    other = (candidate("1", fingerprint=OTHER_WEIGHTS),)
    for tier in (DeterminismTier.T1_SCHEDULE_STABLE, DeterminismTier.T2_STATISTICAL):
        answer = best(other, wish(contract=contract(determinism_tier=tier)))
        assert reason(answer) is RejectReason.FINGERPRINT_MISMATCH
    allowed = wish(contract=contract(tier_drop_allowed=True))
    assert reason(best(other, allowed)) is RejectReason.FINGERPRINT_MISMATCH


def test_an_engine_for_a_session_is_the_least_utilized() -> None:
    fleet = (
        candidate("1", utilization=0.5, slots_free=4),
        candidate("2", utilization=0.1),
        candidate("3", utilization=0.1, slots_free=2),
    )
    assert choose_engine(fleet, "", 100, "tiny") == Chosen("e3")
    assert choose_engine(fleet, "n1", 100, "tiny") == Chosen("e1")
    full = (candidate("1", slots_free=0),)
    assert reason(choose_engine(full, "", 100, "tiny")) is RejectReason.DEVICE_FULL
    assert reason(choose_engine(fleet, "", 1001, "tiny")) is RejectReason.STATE_TOO_LARGE


def test_an_engine_for_a_session_serves_its_preset() -> None:
    """One that does not say is taken to: the engine itself answers for it."""
    built_in = ("tiny", "mg2")
    fleet = (
        candidate("1", fingerprint=EQUAL.serving(built_in)),
        candidate("2", fingerprint=EQUAL.serving((*built_in, "my-world")), utilization=0.9),
    )
    assert choose_engine(fleet, "", 100, "tiny") == Chosen("e1")
    assert choose_engine(fleet, "", 100, "my-world") == Chosen("e2")
    assert choose_engine((candidate("3"), *fleet), "", 100, "my-world") == Chosen("e3")
    refused = choose_engine(fleet, "n1", 100, "my-world")
    assert isinstance(refused, Verdict)
    assert refused.reason is RejectReason.NO_TARGET
    assert "e1 does not serve my-world" in refused.explanation
    with pytest.raises(InvalidInput) as unknown:
        choose_engine(fleet, "", 100, "my")
    assert unknown.value.field == "world.preset"
    assert "mg2, my-world, tiny" in unknown.value.message


def test_a_movers_refusal_becomes_the_right_verdict() -> None:
    full = no_room("n1", CapacityExhausted("none", retry_after_ms=7), RejectReason.TARGET_FULL)
    assert (full.reason, full.retry_after_ms) == (RejectReason.TARGET_FULL, 7)
    large = no_room(
        "n1", CapacityExhausted("big", reason="STATE_TOO_LARGE"), RejectReason.TARGET_FULL
    )
    assert (large.reason, large.retry_after_ms) == (RejectReason.STATE_TOO_LARGE, 0)
