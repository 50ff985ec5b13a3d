"""The documentation names tests, files and decisions that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMED_TESTS = [
    named for page in PAGES for named in re.findall(r"`(tests/\S+?\.py)::(\w+)`", page.read_text())
]


@pytest.mark.parametrize(("path", "name"), NAMED_TESTS)
def test_a_named_test_exists(path: str, name: str) -> None:
    assert re.search(rf"def {name}\(", (ROOT / path).read_text()), f"{path} has no {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readmes_sample_is_the_example() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown == [(ROOT / "examples/ten_lines.py").read_text()]


def test_the_readme_starts_a_cluster_before_it_runs_the_sample() -> None:
    page = (ROOT / "README.md").read_text()
    assert page.index("worldline up --nodes") < page.index(".venv/bin/python examples/ten_lines.py")
