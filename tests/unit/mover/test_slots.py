"""Slot table: names, generations, roles and pins."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from services.mover.runtime import generation_start
from services.mover.slots import (
    GENERATION_STALE,
    MOVER_REPLACED,
    TRANSITIONS,
    Shelf,
    SlotRef,
    SlotRole,
    SlotTable,
)
from worldline.errors import (
    CapacityExhausted,
    Conflict,
    Fenced,
    InvalidInput,
    InvariantBroken,
    NotFound,
)
from worldline.v1 import move_pb2


def table(count: int = 2) -> SlotTable:
    return SlotTable("n", (Shelf("cpu", count, 1000),), 0.0)


def test_generation_grows_at_every_allocation() -> None:
    slots = table(1)
    for generation in range(1, 5):
        ref = slots.allocate("s", 10, SlotRole.LIVE, 0.0)
        assert ref == SlotRef("n", 0, generation)
        assert slots.release(ref, 0.0)
        assert not slots.release(ref, 0.0)


def test_stale_foreign_and_unknown_names() -> None:
    slots = table(1)
    old = slots.allocate("s", 10, SlotRole.LIVE, 0.0)
    slots.release(old, 0.0)
    with pytest.raises(Fenced):
        slots.resolve(old)  # free: nobody's
    new = slots.allocate("t", 10, SlotRole.LIVE, 0.0)
    for attempt in (lambda: slots.resolve(old), lambda: slots.pin(old)):
        with pytest.raises(Fenced) as caught:
            attempt()
        assert caught.value.reason == GENERATION_STALE
    with pytest.raises(Fenced) as caught:
        slots.resolve(new, "s")
    assert caught.value.reason == "SLOT_OF_OTHER_SESSION"
    for ref in (SlotRef("m", 0, 2), SlotRef("n", 7, 1)):
        with pytest.raises(NotFound):
            slots.resolve(ref)
    assert not slots.release(old, 0.0)
    assert slots.resolve(new, "t").role is SlotRole.LIVE


def test_a_name_that_an_earlier_process_gave_out_says_so() -> None:
    shelves = (Shelf("cpu", 2, 1000),)
    before = SlotTable("n", shelves, 0.0, 5 << 20).allocate("s", 10, SlotRole.LIVE, 0.0)
    slots = SlotTable("n", shelves, 0.0, 3 << 20)
    own = slots.allocate("s", 10, SlotRole.LIVE, 0.0)
    later = SlotRef("n", 0, (3 << 20) - 1)
    for ref in (before, later, SlotRef("n", 1, own.generation + 1)):
        with pytest.raises(Fenced) as caught:
            slots.resolve(ref, "s")
        assert caught.value.reason == MOVER_REPLACED
        assert "--same-noise" in caught.value.message
    slots.release(own, 0.0)
    with pytest.raises(Fenced) as caught:
        slots.resolve(own)
    assert caught.value.reason == GENERATION_STALE


def test_full_and_too_large() -> None:
    slots = table(1)
    with pytest.raises(CapacityExhausted) as caught:
        slots.allocate("s", 1001, SlotRole.LIVE, 0.0)
    assert caught.value.reason == "STATE_TOO_LARGE"
    slots.allocate("s", 1000, SlotRole.LIVE, 0.0)
    with pytest.raises(CapacityExhausted) as caught:
        slots.allocate("s", 1, SlotRole.LIVE, 0.0)
    assert caught.value.reason == "NO_FREE_SLOT"


def two_shelves() -> SlotTable:
    shelves = (Shelf("cuda:1", 1, 1000, "GPU-b"), Shelf("cpu", 2, 500))
    return SlotTable("n", shelves, 0.0)


@pytest.mark.parametrize(
    ("asked", "device"),
    [("", "cuda:1"), ("cuda:1", "cuda:1"), ("GPU-b", "cuda:1"), ("cpu", "cpu")],
)
def test_a_slot_rests_where_it_was_asked_for(asked: str, device: str) -> None:
    slots = two_shelves()
    ref = slots.allocate("s", 10, SlotRole.LIVE, 0.0, asked)
    assert slots.resolve(ref).device == device
    assert ref.slot_index == {"cuda:1": 0, "cpu": 1}[device]


def test_each_device_is_full_and_too_small_by_itself() -> None:
    slots = two_shelves()
    slots.allocate("s", 1000, SlotRole.LIVE, 0.0, "GPU-b")
    with pytest.raises(CapacityExhausted) as caught:
        slots.allocate("s", 1, SlotRole.LIVE, 0.0, "cuda:1")
    assert caught.value.reason == "NO_FREE_SLOT"
    assert "cuda:1" in caught.value.message
    with pytest.raises(CapacityExhausted) as caught:
        slots.allocate("s", 501, SlotRole.LIVE, 0.0, "cpu")
    assert caught.value.reason == "STATE_TOO_LARGE"
    assert slots.allocate("s", 500, SlotRole.LIVE, 0.0, "cpu").slot_index == 1


@pytest.mark.parametrize("asked", ["cuda:0", "GPU-c", "gpu"])
def test_a_device_without_slots_is_refused_by_name(asked: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        two_shelves().allocate("s", 1, SlotRole.LIVE, 0.0, asked)
    assert (caught.value.reason, caught.value.field) == ("DEVICE_UNKNOWN", "device")
    assert "cuda:1 GPU-b, cpu" in caught.value.message


def test_a_pinned_slot_is_quarantined_until_the_last_pin_is_gone() -> None:
    slots = table(1)
    ref = slots.allocate("s", 10, SlotRole.SHADOW, 0.0)
    slots.pin(ref)
    slots.pin(ref)
    assert slots.release(ref, 1.0)
    assert slots.states()[0].role is SlotRole.QUARANTINED
    assert slots.release(ref, 1.0)  # a repeated release changes nothing
    with pytest.raises(Conflict):
        slots.pin(ref)
    with pytest.raises(Conflict):
        slots.promote(ref, 1.0)
    slots.unpin(ref, 2.0)
    assert slots.free_count() == 0
    slots.unpin(ref, 3.0)
    assert slots.free_count() == 1
    assert slots.states()[0].since == 3.0
    with pytest.raises(InvariantBroken):
        slots.unpin(ref, 4.0)


def test_promote_is_for_shadows() -> None:
    slots = table(1)
    ref = slots.allocate("s", 10, SlotRole.SHADOW, 0.0)
    slots.promote(ref, 1.0)
    assert slots.resolve(ref).role is SlotRole.LIVE
    with pytest.raises(Conflict) as caught:
        slots.promote(ref, 1.0)
    assert caught.value.reason == "SLOT_ROLE"


def test_every_role_is_the_protos() -> None:
    for role in SlotRole:
        assert move_pb2.SlotRole.Name(role) == f"SLOT_ROLE_{role.name}"
        assert any(role in pair for pair in TRANSITIONS)


class Tenancy(RuleBasedStateMachine):
    """However slots are used, a name means one tenancy and pinned bytes are not reused."""

    refs: Bundle[SlotRef] = Bundle("refs")

    def __init__(self) -> None:
        super().__init__()
        self.slots = table(3)
        self.seen: set[SlotRef] = set()
        self.pins: dict[SlotRef, int] = {}

    @rule(target=refs, role=st.sampled_from([SlotRole.LIVE, SlotRole.SHADOW]))
    def allocate(self, role: SlotRole) -> SlotRef:
        pinned = {ref.slot_index for ref, count in self.pins.items() if count}
        if self.slots.free_count() == 0:
            with pytest.raises(CapacityExhausted):
                self.slots.allocate("s", 1, role, 0.0)
            return SlotRef("n", 0, 10**9)
        ref = self.slots.allocate("s", 1, role, 0.0)
        assert ref not in self.seen
        assert ref.slot_index not in pinned
        self.seen.add(ref)
        return ref

    @rule(ref=refs)
    def pin(self, ref: SlotRef) -> None:
        try:
            self.slots.pin(ref)
        except (Fenced, Conflict):
            return
        self.pins[ref] = self.pins.get(ref, 0) + 1

    @rule(ref=refs)
    def unpin(self, ref: SlotRef) -> None:
        if self.pins.get(ref):
            self.slots.unpin(ref, 0.0)
            self.pins[ref] -= 1

    @rule(ref=refs)
    def release(self, ref: SlotRef) -> None:
        self.slots.release(ref, 0.0)

    @invariant()
    def pins_agree(self) -> None:
        for state in self.slots.states():
            assert state.pins == self.pins.get(state.ref, 0)
            if state.role is SlotRole.FREE:
                assert state.pins == 0
            if state.role is SlotRole.QUARANTINED:
                assert state.pins > 0


Tenancy.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestTenancy = Tenancy.TestCase


def test_generations_of_two_processes_are_apart() -> None:
    """A mover that restarted gives no slot a name that its former self gave."""
    starts = [generation_start() for _ in range(50)]
    names = [
        SlotTable("n", (Shelf("cpu", 1, 1000),), 0.0, start)
        .allocate("s", 1, SlotRole.LIVE, 0.0)
        .generation
        for start in starts
    ]
    assert names == [start + 1 for start in starts]
    gaps = [later - earlier for earlier, later in pairwise(sorted(names))]
    assert min(gaps) >= 1 << 20
    assert max(names) < 1 << 52
