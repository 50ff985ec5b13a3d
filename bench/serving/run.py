"""Run: one device, its sessions and one policy, from its start to the end of the cell."""

from __future__ import annotations

from collections.abc import Sequence

from bench.serving.device import Device
from bench.serving.policies.policy import Policy
from bench.serving.session import Session

#: What the serving layer adds to a quantum (section 5: 0.2 ms over 21,878 quanta).
SERVING_S = 0.0002


def play(device: Device, sessions: Sequence[Session], policy: Policy, length_s: float) -> None:
    """Quantum after quantum; what happened is in the sessions' ledgers.

    A block that is unfinished at the end is in nobody's ledger.
    """
    now = 0.0
    while now < length_s:
        chosen = policy.next(sessions, now)
        if not isinstance(chosen, Session):
            now = chosen
            continue
        if not chosen.mid_block:
            chosen.begin(policy.steps(chosen, sessions, now))
        expected_s = device.bulk_s if chosen.bulk_shaped else device.interactive_s
        now = device.ends_at(now, expected_s) + SERVING_S
        if now <= length_s:
            chosen.quantum_done(now)
