"""Engines that do not repeat themselves are found by whoever asks the doctor."""

from __future__ import annotations

from worldline.doctor.codec import facts_from_proto, facts_to_proto
from worldline.doctor.examination import Examination, Examined, judge
from worldline.doctor.facts import ENGINE, ProcessFacts
from worldline.doctor.finding import Severity
from worldline.doctor.selfcheck import check_self_checks

SAID = "generated again: block 0: leaf kv_cache[0].k differs"


def test_each_preset_that_differs_from_itself_is_a_finding() -> None:
    facts = ProcessFacts(ENGINE, "e1", self_checks={"small": SAID, "tiny": "", "mine": SAID})
    assert facts_from_proto(facts_to_proto(facts)).self_checks == facts.self_checks
    found = tuple(check_self_checks(facts))
    assert [one.field for one in found] == ["mine", "small"]
    assert {(one.code, one.severity, one.subject) for one in found} == {
        ("NOT_DETERMINISTIC", Severity.WARNING, "engine e1")
    }
    assert SAID in found[0].what


def test_it_is_part_of_an_examination() -> None:
    facts = ProcessFacts(ENGINE, "e1", self_checks={"tiny": SAID})
    examined = Examined(service=ENGINE, instance="e1", facts=facts)
    codes = [one.code for one in judge(Examination((examined,)))]
    assert "NOT_DETERMINISTIC" in codes
