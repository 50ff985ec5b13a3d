"""Claims for tests, one line each."""

from __future__ import annotations

import math

from services.engine.schedule.claim import Claim
from worldline.contract import ServiceClass

C1 = ServiceClass.C1_INTERACTIVE
C2A = ServiceClass.C2A_PLANNER
C2B = ServiceClass.C2B_COHORT
C3 = ServiceClass.C3_BULK
C4 = ServiceClass.C4_REPLAY
C5 = ServiceClass.C5_MAINTENANCE


def claim(
    session_id: str,
    service_class: ServiceClass = C1,
    release_at: float = 0.0,
    deadline_at: float = math.inf,
    arrived_at: float = 0.0,
    **facts: object,
) -> Claim:
    return Claim(session_id, service_class, release_at, deadline_at, arrived_at, **facts)
