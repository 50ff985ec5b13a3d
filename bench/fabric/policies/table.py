"""Every policy by its name, in the order of the table."""

from __future__ import annotations

from bench.fabric.policies.accept_all import AcceptAll
from bench.fabric.policies.admission import WorldlineAdmission
from bench.fabric.policies.incast_aware import IncastAware
from bench.fabric.policies.oracle import Oracle
from bench.fabric.policies.pair_calibrated import PairCalibrated
from bench.fabric.policies.policy import MakePolicy
from bench.fabric.policies.rate_limiter import RateLimiter

ORACLE = "oracle"
NAIVE = "pair-calibrated"
INCAST_AWARE = "incast-aware"
OURS = "worldline"
POLICIES: dict[str, MakePolicy] = {
    "accept-all": AcceptAll,
    "rate-limiter": RateLimiter,
    NAIVE: PairCalibrated,
    INCAST_AWARE: IncastAware,
    OURS: WorldlineAdmission,
    ORACLE: Oracle,
}
