"""What the chaos runs draw follows from the seed, and what they excuse has happened."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.faults import FaultKind, faults
from tests.chaos.journal import Journal

PROCESSES = ("admission", "engine-node-1", "mover-node-1", "placement")


@given(seed=st.integers(0, 2**32), calm_s=st.floats(0.1, 60.0))
def test_faults_follow_from_the_seed(seed: int, calm_s: float) -> None:
    one = list(itertools.islice(faults(seed, PROCESSES, calm_s), 50))
    assert one == list(itertools.islice(faults(seed, PROCESSES, calm_s), 50))
    for fault in one:
        assert fault.process in PROCESSES
        assert fault.calm_s >= 0.0
        assert 0.0 <= fault.lasts_s <= 12.0


def test_every_process_fails_in_every_way() -> None:
    drawn = {
        (fault.process, fault.kind) for fault in itertools.islice(faults(1, PROCESSES, 1), 400)
    }
    assert drawn == set(itertools.product(PROCESSES, FaultKind))


def test_a_loss_is_excused_by_its_own_node_alone() -> None:
    lines: list[str] = []
    journal = Journal(lines.append)
    journal.fault_began("engine-node-1", "kill", 0.0)
    journal.fault_began("placement", "kill", 0.0)
    assert journal.troubled_since("node-1", 0.0)
    assert not journal.troubled_since("node-2", 0.0)
    assert not journal.troubled_since("node-1", float("inf"))
    assert journal.findings == []
    assert len(lines) == 2
