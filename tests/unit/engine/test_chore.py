"""Chore: what the engine's own work claims, and that it ends under load without anybody late."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.engine.chore import WAIT_MAX_S, WAIT_RATIO, Turns
from services.engine.parts import by_parts, cuts, exhaust, spans, zeroed
from services.engine.schedule import Band, Choice, Claim, Guard, Idle, Wait, pick
from worldline.contract import ServiceClass

EXACT = Guard(0.0, 0.0)


def turns(part_s: float = 0.004, *, stands: bool = False) -> Turns:
    """A chore one part of which has run, at 1.0."""
    found = Turns("chore 1", 0.5, stands)
    found.took(part_s)
    assert part_s == 0 or not found.claim(1.0).hard
    return found


def test_a_part_waits_for_ten_times_its_length_and_is_hard_then() -> None:
    chore = turns()
    waiting = chore.claim(1.0 + WAIT_RATIO * 0.004 - 1e-6)
    assert (waiting.hard, waiting.deadline_at, waiting.arrived_at) == (False, math.inf, 0.5)
    assert waiting.quantum_s == 0.004
    assert chore.hard_at == 1.0 + WAIT_RATIO * 0.004
    assert chore.claim(chore.hard_at).hard
    late = Claim("s1", ServiceClass.C1_INTERACTIVE, 0.0, 0.0, 0.0, left_s=1.0)
    choice = pick([late, chore.claim(chore.hard_at)], chore.hard_at)
    assert isinstance(choice, Choice)
    assert choice.session_id == "chore 1", "else whoever is always late would keep it for ever"


def test_two_parts_never_follow_each_other_however_late_the_schedule_is_asked() -> None:
    chore = turns(1e-6)
    assert chore.claim(2.0).hard
    chore.took(1e-6)
    assert chore.hard_at == math.inf
    assert not chore.claim(3.0).hard
    assert chore.claim(3.1).hard


def test_a_long_part_waits_no_longer_than_the_most_and_one_unknown_not_at_all() -> None:
    assert turns(3.0).hard_at == 1.0 + WAIT_MAX_S
    assert Turns("chore 1", 0.5).claim(0.5).hard


def test_a_world_that_stands_still_waits_for_one_parts_length() -> None:
    chore = turns(stands=True)
    assert not chore.claim(1.003).hard
    assert chore.claim(1.004).hard


def test_the_longest_of_the_latest_parts_is_expected() -> None:
    chore = turns(0.1)
    for _ in range(3):
        chore.took(0.01)
    assert chore.expected_s == 0.1
    chore.took(0.01)
    assert chore.expected_s == 0.01


def test_beside_a_world_whose_release_is_near_a_part_waits() -> None:
    to_come = Claim(
        "s1",
        ServiceClass.C1_INTERACTIVE,
        release_at=1.001,
        deadline_at=1.1,
        arrived_at=1.001,
        left_s=0.098,
        prospective=True,
    )
    chore = turns()
    held = pick([chore.claim(1.0), to_come], 1.0, guard=EXACT)
    assert isinstance(held, Idle)
    assert held.reason is Wait.GUARDED
    choice = pick([chore.claim(1.0), to_come._replace(deadline_at=1.2)], 1.0, guard=EXACT)
    assert isinstance(choice, Choice)
    assert (choice.session_id, choice.band) == ("chore 1", Band.BULK)


@dataclass
class Device:
    """A device on a clock of its own: a paced world that has every action in time, and a chore."""

    period_s: float
    quantum_s: float
    quanta: int
    part_s: float
    parts: int
    now: float = 0.0
    misses: int = 0
    block: int = 0
    quanta_left: int = 0

    def __post_init__(self) -> None:
        self.quanta_left = self.quanta
        #: Whose turn each was.
        self.order: list[str] = []
        self.chore = Turns("chore 1", 0.0)

    def world(self) -> Claim:
        return Claim(
            "s1",
            ServiceClass.C1_INTERACTIVE,
            release_at=self.block * self.period_s,
            deadline_at=(self.block + 1) * self.period_s,
            arrived_at=self.block * self.period_s,
            mid_block=self.quanta_left < self.quanta,
            quantum_s=self.quantum_s,
            left_s=self.quanta_left * self.quantum_s,
            period_s=self.period_s,
            block_s=self.quanta * self.quantum_s,
        )

    def run(self) -> float:
        """Until the chore has ended; when that was."""
        done = 0
        while done < self.parts:
            choice = pick([self.world(), self.chore.claim(self.now)], self.now, guard=EXACT)
            if isinstance(choice, Idle):
                self.now = min(choice.until, self.chore.hard_at)
                continue
            self.order.append(choice.session_id)
            if choice.session_id == "s1":
                self._quantum()
            else:
                self.now += self.part_s
                done += 1
                self.chore.took(self.part_s)
        return self.now

    def _quantum(self) -> None:
        self.now += self.quantum_s
        self.quanta_left -= 1
        if self.quanta_left == 0:
            self.misses += self.now > (self.block + 1) * self.period_s + 1e-9
            self.block, self.quanta_left = self.block + 1, self.quanta


@pytest.mark.parametrize("share", [0.1, 0.5, 0.85])
def test_no_release_of_a_paced_world_is_missed_for_a_chore(share: float) -> None:
    device = Device(0.1, share * 0.1 / 4, 4, part_s=0.004, parts=400)
    device.run()
    assert device.misses == 0
    assert device.block > 10


@given(
    share=st.floats(0.5, 3.0),
    part_s=st.floats(0.001, 0.3),
    parts=st.integers(1, 60),
)
def test_a_chore_ends_under_any_load_and_parts_never_follow_each_other_then(
    share: float, part_s: float, parts: int
) -> None:
    device = Device(0.1, share * 0.1 / 4, 4, part_s, parts)
    wait_s = min(WAIT_MAX_S, WAIT_RATIO * part_s) + device.quantum_s
    assert device.run() <= parts * (part_s + wait_s) + 1e-6
    if share >= 1.0:  # the world always has a quantum to run, and it is due before
        for one, other in zip(device.order[1:], device.order[2:], strict=False):
            assert "s1" in (one, other)


shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@given(shapes, st.sampled_from([1, 2, 8]), st.integers(1, 200))
def test_cuts_have_every_item_once_in_parts_that_are_small_enough(
    shape: tuple[int, ...], item_bytes: int, most_bytes: int
) -> None:
    seen = torch.zeros(shape, dtype=torch.int64)
    for index in cuts(shape, item_bytes, most_bytes):
        seen[index] += 1
        assert seen[index].numel() * item_bytes <= max(most_bytes, item_bytes)
    assert bool((seen == 1).all())


@given(st.integers(0, 10_000), st.integers(1, 3_000))
def test_spans_cover_every_byte_in_order(extent_bytes: int, most_bytes: int) -> None:
    covered = [*spans(extent_bytes, most_bytes)]
    assert all(0 < stop - start <= most_bytes for start, stop in covered)
    assert [byte for span in covered for byte in range(*span)] == [*range(extent_bytes)]


def test_small_tensors_share_a_part_and_large_ones_have_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.engine.parts.HOST_PART_BYTES", 100)
    tensors = [torch.ones(size, dtype=torch.uint8) for size in (30, 30, 250, 0, 40)]
    touched: list[list[int]] = [[]]
    for _ in by_parts(tensors, lambda number, _: touched[-1].append(number)):
        touched.append([])
    assert touched == [[0, 1], [2], [2], [2, 4]]
    exhaust(zeroed(tensors))
    assert not any(bool(tensor.any()) for tensor in tensors)
