"""What paths did to bytes: a bad one stands out, however many good moves there are."""

from __future__ import annotations

import random

from services.admission.paths import PathBook, Record

from .builders import measured, move, report


def test_one_corrupted_move_in_100_000_points_at_its_path() -> None:
    draw = random.Random(8)
    nodes = [f"n{number}" for number in range(10)]
    paths = PathBook(1_000)
    bad = ("n3", "n7")
    pairs = [(source, target) for source in nodes for target in nodes if source != target]
    for _ in range(99_999):
        paths.note(draw.choice(pairs), corrupted=False)
    paths.note(bad, corrupted=True)
    assert [pair for pair in pairs if paths.record(pair).corrupted] == [bad]
    assert sum(paths.record(pair).ended for pair in pairs) == 100_000


def test_records_are_bounded_and_a_bad_path_is_the_last_to_be_forgotten() -> None:
    paths = PathBook(2)
    paths.note(("a", "b"), corrupted=True)
    for number in range(10):
        paths.note(("a", f"c{number}"), corrupted=False)
    assert paths.record(("a", "b")) == Record(1, 1)
    assert paths.record(("a", "c0")) == Record()
    assert paths.record(("a", "c9")) == Record(1, 0)


def test_a_move_that_ended_is_counted_by_how() -> None:
    admission = measured()
    for number, reason in enumerate(("", "DIGEST_MISMATCH", "TRANSFER_FAILED")):
        assert admission.admit_move(move(number), f"t{number}", 0.0).verdict.admitted
        admission.finish_move(report(move(number), reason=reason), 0.0)
    assert admission.paths.record(("a", "b")) == Record(ended=3, corrupted=1)
    admission.finish_move(report(move(1), reason="DIGEST_MISMATCH"), 0.0)  # said again
    assert admission.paths.record(("a", "b")) == Record(ended=3, corrupted=1)
