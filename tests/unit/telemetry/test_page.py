"""The page on telemetry says what the code does: its tables are compared with it."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

from services.placement import phases, suspension
from worldline.park import SuspensionVerb
from worldline.telemetry import catalogue
from worldline.telemetry.catalogue import Metric
from worldline.telemetry.labels import SETS_MAX
from worldline.telemetry.pipeline import QUEUE_MAX

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/telemetry.md").read_text()
#: A span's name where it is written down; others are steps and verbs.
_NAMED = re.compile(r'\b(?:lasting_)?span\(\s*"([a-z._]+)"')


def row(metric: Metric) -> str:
    """A metric as the page has it."""
    labels = " ".join(f"`{label.name}`" for label in metric.labels)
    by = ", ".join(metric.services) if metric.services != catalogue.EVERY_SERVICE else "all"
    cells = (f"`{metric.name}`", metric.kind.value, f"`{metric.unit}`", labels, by)
    return f"| {' | '.join(cells)} | {metric.description} |"


def test_the_pages_metrics_are_the_catalogues() -> None:
    """On a difference: the page's rows between the head and the next paragraph are to be these."""
    head = "| metric | kind | unit | labels | by | meaning |\n|---|---|---|---|---|---|\n"
    _, found, rest = PAGE.partition(head)
    assert found
    rows = rest.partition("\n\n")[0].splitlines()
    assert rows == [row(metric) for metric in catalogue.METRICS]


def test_the_pages_spans_are_the_codes() -> None:
    traces = PAGE.partition("| span | by | what it is |")[2].partition("\n\n")[0]
    named = {
        name
        for line in traces.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([a-z._]+)`", line.split("|")[1])
    }
    sources = [path.read_text() for path in sorted((ROOT / "services").rglob("*.py"))]
    written = {name for source in sources for name in _NAMED.findall(source)}
    assert written | values(phases.Step) | values(suspension.Step) | verbs() == named


def values(steps: type[Enum]) -> set[str]:
    return {str(step.value) for step in steps}


def verbs() -> set[str]:
    return {verb.name.lower() for verb in SuspensionVerb}


def test_the_pages_numbers_are_the_codes() -> None:
    assert f"{SETS_MAX} combinations" in " ".join(PAGE.split())
    assert f"{QUEUE_MAX:,} spans wait at most" in PAGE
