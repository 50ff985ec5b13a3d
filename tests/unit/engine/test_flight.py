"""Flight: its quanta pass one after the other, as long as each may."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from services.engine.flight import UNTOLD_MS_MAX, Flight
from services.engine.quality import Quality
from services.engine.quantum import Quantum
from services.engine.world import NO_FRAMES, Frames
from worldline.errors import InvariantBroken

STEP, LAST = Quantum(2.0), Quantum(3.0, NO_FRAMES)
BROKEN = Quantum(1.0, error=InvariantBroken("no"))


def flight() -> Flight:
    def run() -> Iterator[None]:
        yield

    return Flight(run(), Quality(3, 3), quanta=4)  # type: ignore[arg-type]


def giving(quanta: list[Quantum]) -> Callable[[], Quantum]:
    found = iter(quanta)
    return lambda: next(found)


def always(done: Quantum) -> bool:
    return True


@pytest.mark.parametrize("last", [LAST, BROKEN])
def test_it_flies_to_the_end_of_its_block_and_no_further(last: Quantum) -> None:
    one = flight()
    assert one.fly(giving([STEP, STEP, last, STEP]), always) == [STEP, STEP, last]
    assert one.quanta_done == 3
    assert one.spent_ms == 4.0 + last.elapsed_ms


def test_it_is_asked_before_every_quantum_but_the_first() -> None:
    one, asked = flight(), list[tuple[Quantum, int]]()

    def once(done: Quantum) -> bool:
        asked.append((done, one.quanta_left))
        return len(asked) == 1

    second = Quantum(7.0)
    assert one.fly(giving([STEP, second, LAST]), once) == [STEP, second]
    assert asked == [(STEP, 3), (second, 2)]
    assert one.fly(giving([STEP, LAST]), always) == [STEP, LAST]
    assert one.quanta_done == 4


def test_the_loop_hears_of_long_quanta_before_the_block_is_over() -> None:
    half = Quantum(UNTOLD_MS_MAX / 2)
    one = flight()
    assert one.fly(giving([half] * 3 + [LAST]), always) == [half, half]
    assert one.fly(giving([half, LAST]), always) == [half, LAST]


def test_what_an_advance_or_a_question_raises_is_raised() -> None:
    def fails(*_: Quantum) -> bool:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        flight().fly(giving([STEP]), fails)
    with pytest.raises(ZeroDivisionError):
        flight().fly(fails, always)  # type: ignore[arg-type]


def test_frames_are_those_of_the_block() -> None:
    frames = Frames(1, 1, 1, b"abc")
    assert flight().fly(giving([STEP, Quantum(1.0, frames)]), always)[-1].frames is frames
