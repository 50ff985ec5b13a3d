"""Versions, layouts and fingerprints that differ (fault 36)."""

from __future__ import annotations

from dataclasses import replace

from worldline.doctor.facts import ENGINE, MOVER, ProcessFacts
from worldline.doctor.finding import Severity
from worldline.doctor.skewcheck import check_fingerprints, check_skew

VERSIONS = {"worldline": "0.1.0", "protocol": "3", "granule_bytes": "1048576", "libucx-cu13": "1"}
MOVERS = [ProcessFacts(MOVER, f"node-{number}", versions=VERSIONS) for number in range(3)]


def test_equal_versions_are_left_alone() -> None:
    assert check_skew(MOVERS) == ()
    assert check_skew([*MOVERS, ProcessFacts(ENGINE, "e")]) == ()  # that says nothing of itself


def test_whoever_differs_from_most_is_named() -> None:
    for name, severity in (
        ("protocol", Severity.ERROR),
        ("granule_bytes", Severity.ERROR),
        ("worldline", Severity.WARNING),
        ("libucx-cu13", Severity.WARNING),
    ):
        odd = replace(MOVERS[1], versions={**VERSIONS, name: "other"})
        (found,) = check_skew([MOVERS[0], odd, MOVERS[2]])
        assert (found.code, found.severity) == ("VERSIONS_DIFFER", severity)
        assert (found.subject, found.field) == ("mover node-1", name)


def test_of_two_that_differ_one_is_named_whatever_the_order() -> None:
    odd = replace(MOVERS[1], versions={**VERSIONS, "protocol": "2"})
    assert check_skew([MOVERS[0], odd]) == check_skew([odd, MOVERS[0]])
    assert [one.subject for one in check_skew([MOVERS[0], odd])] == ["mover node-1"]


def test_an_engine_of_another_configuration_is_named_with_the_facts() -> None:
    usual = ("aa", {"torch": "2.13", "threads": "1"})
    engines = {
        "e1": usual,
        "e2": ("bb", {"torch": "2.12", "threads": "1", "gpu": "x"}),
        "e3": usual,
    }
    (found,) = check_fingerprints(engines)
    assert (found.code, found.subject) == ("FINGERPRINT_DIFFERS", "engine e2")
    assert "gpu, torch" in found.what
    assert "install the same torch on both" in found.remedy
    assert check_fingerprints({"e1": usual, "e3": usual}) == ()
    assert check_fingerprints({"e1": usual}) == check_fingerprints({}) == ()
