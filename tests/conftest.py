"""What holds for every test of the tree."""

from __future__ import annotations

from hypothesis import settings

# Time limits belong to pytest-timeout: a deadline per example fails on a busy machine only.
settings.register_profile("worldline", deadline=None)
settings.load_profile("worldline")
