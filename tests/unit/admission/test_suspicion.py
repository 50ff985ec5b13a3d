"""Suspicion: one surprise is charged to every path that shares a node, until it is measured."""

from __future__ import annotations

import pytest

from services.admission.core import Admission
from services.admission.suspicion import RATIO_MAX, SUSPICION_S, Suspicions
from worldline.admissibility.path_rate import TransferSample
from worldline.verdict import RejectReason

from .builders import STATE_BYTES, measured, move, sample

RATE = 12.5e9
SOLO_MS = STATE_BYTES / RATE * 1e3
PAIRS = (("a", "b"), ("a", "c"), ("d", "b"), ("d", "c"))


def _slow(times: float) -> TransferSample:
    return TransferSample(STATE_BYTES, SOLO_MS * times)


def _charged_ms(admission: Admission, source: str, target: str, now_s: float = 1.0) -> float:
    return admission.paths.charged(source, [target], STATE_BYTES, now_s, 1e9)[target].move_ms


def test_a_surprise_is_charged_to_the_paths_of_both_its_nodes() -> None:
    admission = measured(*PAIRS)
    before_ms = _charged_ms(admission, "a", "c")
    admission.paths.teach(("a", "b"), _slow(1.3), 1.0, 1e9)
    assert _charged_ms(admission, "a", "c") == pytest.approx(1.3 * before_ms, rel=1e-3)
    assert _charged_ms(admission, "d", "b") == pytest.approx(1.3 * before_ms, rel=1e-3)
    assert _charged_ms(admission, "d", "c") == pytest.approx(before_ms, rel=1e-3)


def test_within_what_was_charged_nothing_is_suspected() -> None:
    admission = measured(*PAIRS)
    before_ms = _charged_ms(admission, "a", "c")
    for times in (1.07, 0.7, 1.0):
        admission.paths.teach(("a", "b"), _slow(times), 1.0, 1e9)
    assert _charged_ms(admission, "a", "c") == pytest.approx(before_ms, rel=1e-3)


def test_a_path_that_is_measured_again_is_believed_again() -> None:
    admission = measured(*PAIRS)
    before_ms = _charged_ms(admission, "a", "c")
    admission.paths.teach(("a", "b"), _slow(1.3), 1.0, 1e9)
    admission.paths.teach(("a", "c"), sample(RATE), 2.0, 1e9)
    assert _charged_ms(admission, "a", "c", 2.0) == pytest.approx(before_ms, rel=1e-3)
    assert _charged_ms(admission, "d", "b", 2.0) > 1.2 * before_ms


def test_what_nothing_confirms_is_forgotten() -> None:
    admission = measured(*PAIRS)
    before_ms = _charged_ms(admission, "a", "c")
    admission.paths.teach(("a", "b"), _slow(1.3), 1.0, 1e9)
    late_s = 1.0 + SUSPICION_S
    assert _charged_ms(admission, "a", "c", late_s - 0.01) > 1.2 * before_ms
    assert _charged_ms(admission, "a", "c", late_s) == pytest.approx(before_ms, rel=1e-3)


def test_one_is_believed_no_further_than_an_outlier_is() -> None:
    admission = measured(*PAIRS)
    before_ms = _charged_ms(admission, "a", "c")
    admission.paths.teach(("a", "b"), _slow(50.0), 1.0, 1e9)
    assert _charged_ms(admission, "a", "c") == pytest.approx(RATIO_MAX * before_ms, rel=1e-3)


def test_a_reject_for_a_suspicion_asks_for_a_probe_and_a_probe_settles_it() -> None:
    admission = measured(*PAIRS)
    tight = move(1, "a", "c", horizon_ms=SOLO_MS * 1.2)
    admission.paths.teach(("a", "b"), _slow(1.3), 1.0, 1e9)
    verdict = admission.admit_move(tight, "t1", 1.0).verdict
    assert verdict.reason is RejectReason.PATH_UNMEASURED
    assert verdict.numbers["t_migrate_ms"] > SOLO_MS * 1.2
    assert "another path of a node of" in verdict.explanation
    admission.paths.teach(("a", "c"), sample(RATE), 2.0, 1e9)
    assert admission.admit_move(tight, "t1", 2.0).verdict.admitted


def test_the_charge_is_that_of_its_parts() -> None:
    admission = measured(*PAIRS)
    admission.paths.teach(("a", "b"), _slow(1.3), 1.0, 1e9)
    charged = admission.paths.charged("a", ["b", "c"], STATE_BYTES, 1.0, 1e9)
    assert list(charged) == ["b", "c"]
    for one in charged.values():
        assert one.cost.t_migrate_ms(STATE_BYTES) == one.move_ms


def test_a_change_that_is_believed_is_a_surprise_too() -> None:
    admission = measured(*PAIRS)
    before_ms = _charged_ms(admission, "a", "c")
    for at_s in (1.0, 2.0):
        admission.paths.teach(("a", "b"), _slow(1.4), at_s, 1e9)
    assert _charged_ms(admission, "a", "c", 2.0) == pytest.approx(1.4 * before_ms, rel=0.01)


def test_suspicions_are_bounded() -> None:
    suspicions = Suspicions(3)
    admission = measured()
    before = admission.paths.get("a", "b")
    assert before is not None
    after = before.updated(_slow(2.0), 1.0)
    for number in range(10):
        suspicions.learn((f"s{number}", f"t{number}"), before, after)
    assert len(suspicions) == 3
    assert suspicions.ratio(("s9", "x"), 0.0, 1.0) == pytest.approx(RATIO_MAX)
    assert suspicions.ratio(("s0", "x"), 0.0, 1.0) == 1.0


def test_small_transfers_do_not_keep_a_suspicion_alive() -> None:
    admission = measured(*PAIRS)
    before_ms = _charged_ms(admission, "a", "c")
    admission.paths.teach(("a", "b"), _slow(1.3), 1.0, 1e9)
    for at_s in range(2, 100):
        admission.paths.teach(("a", "b"), TransferSample(1 << 20, 1.0), float(at_s), 1e9)
    late_s = 1.0 + SUSPICION_S
    assert _charged_ms(admission, "a", "c", late_s) == pytest.approx(before_ms, rel=1e-3)
