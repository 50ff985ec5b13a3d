"""What holds for every test of the tree."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Time limits belong to pytest-timeout: a deadline per example fails on a busy machine only, and so
# does the check that examples are made fast enough. Every run has the same examples, so that one
# that passed here passes elsewhere; `--hypothesis-profile=explore` looks for others.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("worldline", settings.get_profile("explore"), derandomize=True)
settings.load_profile("worldline")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The clusters that end-to-end tests share run as long as those tests: they come last."""
    items.sort(key=lambda item: "e2e" in item.path.parts)
