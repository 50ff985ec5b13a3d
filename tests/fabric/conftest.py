"""What tests on a real fabric share: where none can be made they are skipped, and say why."""

from __future__ import annotations

import pytest

from tests.fabric.namespaces import why_not


@pytest.fixture(scope="session")
def fabric_possible() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
