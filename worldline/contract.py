"""Contract: what a session was promised. A contract that contradicts itself cannot be built.

Classes, tiers and the coherence rules are the paper's, section 5 (arXiv 2607.10389).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from worldline.errors import InvalidInput
from worldline.fields import enum_member, identifier, non_negative, positive, whole
from worldline.v1 import contract_pb2

#: One day. A longer horizon is a bulk copy and needs no deadline; and durations stay small
#: enough that no sum of them overflows or loses its milliseconds.
HORIZON_MS_MAX = 86_400_000.0
#: A nanosecond. Shorter is no time, and its reciprocal would not stay in range.
HORIZON_MS_MIN = 1e-6
#: A microsecond: shares of it are finite numbers, and nothing generates a block in less.
PERIOD_MS_MIN = 1e-3
#: Far above any sampler in use; keeps a garbled request from asking for ever.
QUALITY_FLOOR_STEPS_MAX = 1_000
#: An hour of blocks at any rate in use; more is no limit, which 0 says.
DEGRADED_CONSECUTIVE_MAX = 100_000


class ServiceClass(IntEnum):
    """Class of service; numbers as in contract.proto."""

    C1_INTERACTIVE = 1
    C2A_PLANNER = 2
    C2B_COHORT = 3
    C3_BULK = 4
    C4_REPLAY = 5
    C5_MAINTENANCE = 6


#: Nobody looks at these worlds while they move.
BULK_CLASSES = frozenset({ServiceClass.C3_BULK, ServiceClass.C5_MAINTENANCE})


class DeterminismTier(IntEnum):
    """What "the same continuation" means; numbers as in contract.proto."""

    T0_BITWISE = 1
    T1_SCHEDULE_STABLE = 2
    T2_STATISTICAL = 3


class DecodeTier(IntEnum):
    """How much of each latent frame becomes RGB; numbers as in contract.proto."""

    FULL = 1
    HALF = 2
    NONE = 3


@dataclass(frozen=True, slots=True)
class Contract:
    """What a session was promised.

    `horizon_ms` is the longest stall a client may see in a move; `period_ms` the release period
    of blocks, 0 where the client paces the world. `tier_drop_allowed` lets a T0 session continue
    at T1 where no node has an equal fingerprint, and means nothing at any other tier.

    `quality_floor_steps` is how far a block may be degraded when its period leaves too little
    time: to that many denoising steps and no fewer. 0, the default, allows none: every block has
    the model's full quality, however late. Without a period no block is late, and none is ever
    degraded. A world that tracks a reference drifts from it while it is degraded (paper, appendix
    D): `degraded_consecutive_max` is how many blocks in a row may be, after which one has full
    quality whatever it costs; 0 is no limit. (It is the (1, n+1)-firm case of Hamdaoui and
    Ramanathan, 1995: of any n+1 consecutive blocks at least one is whole.)

    `cohort` names C2b sessions that advance together: on one engine none of them begins its next
    block before all have ended this one. Empty is a cohort of its own.

    Raises:
        InvalidInput: a value out of range or a combination that contradicts itself; `field` is
            `contract.<name>`.
    """

    service_class: ServiceClass
    horizon_ms: float
    period_ms: float = 0.0
    quality_floor_steps: int = 0
    determinism_tier: DeterminismTier = DeterminismTier.T0_BITWISE
    decode_tier: DecodeTier = DecodeTier.FULL
    tier_drop_allowed: bool = False
    degraded_consecutive_max: int = 0
    cohort: str = ""

    def __post_init__(self) -> None:
        horizon_ms = positive(
            self.horizon_ms,
            "contract.horizon_ms",
            at_least=HORIZON_MS_MIN,
            at_most=HORIZON_MS_MAX,
        )
        period_ms = non_negative(self.period_ms, "contract.period_ms", at_most=HORIZON_MS_MAX)
        if period_ms > 0:
            period_ms = positive(period_ms, "contract.period_ms", at_least=PERIOD_MS_MIN)
        # One type per field whatever the caller wrote, so that equal contracts print alike.
        object.__setattr__(self, "horizon_ms", horizon_ms)
        object.__setattr__(self, "period_ms", period_ms)
        kinds = {
            "service_class": ServiceClass,
            "determinism_tier": DeterminismTier,
            "decode_tier": DecodeTier,
        }
        for name, kind in kinds.items():
            member = enum_member(kind, getattr(self, name), f"contract.{name}")
            object.__setattr__(self, name, member)
        whole(
            self.quality_floor_steps,
            "contract.quality_floor_steps",
            at_most=QUALITY_FLOOR_STEPS_MAX,
        )
        whole(
            self.degraded_consecutive_max,
            "contract.degraded_consecutive_max",
            at_most=DEGRADED_CONSECUTIVE_MAX,
        )
        if self.cohort:
            identifier(self.cohort, "contract.cohort")
        self._check_replay()
        self._check_coherence()

    def _check_replay(self) -> None:
        if (
            self.service_class is ServiceClass.C4_REPLAY
            and self.determinism_tier is DeterminismTier.T2_STATISTICAL
        ):
            raise InvalidInput(
                "a C4 replay at T2 promises nothing: a replay that may differ replays nothing; "
                "ask for T0 or T1, or for another class",
                field="contract.determinism_tier",
            )
        if self.service_class is ServiceClass.C4_REPLAY and self.quality_floor_steps > 0:
            raise InvalidInput(
                "a C4 replay is not degraded, it would replay another run; leave out the quality "
                "floor, or ask for another class",
                field="contract.quality_floor_steps",
            )

    def dropped(self) -> Contract:
        """What a T0 session is promised from its drop on: T1, and no further drop."""
        return replace(
            self, determinism_tier=DeterminismTier.T1_SCHEDULE_STABLE, tier_drop_allowed=False
        )

    def _check_coherence(self) -> None:
        if self.tier_drop_allowed and self.determinism_tier is not DeterminismTier.T0_BITWISE:
            raise InvalidInput(
                f"only a T0 session can drop a tier; this one is at {self.determinism_tier.name}",
                field="contract.tier_drop_allowed",
            )
        if self.degraded_consecutive_max > 0 and self.quality_floor_steps == 0:
            raise InvalidInput(
                f"at most {self.degraded_consecutive_max} degraded blocks in a row are allowed, "
                "but without a quality floor no block is; set quality_floor_steps too",
                field="contract.degraded_consecutive_max",
            )
        if self.cohort and self.service_class is not ServiceClass.C2B_COHORT:
            raise InvalidInput(
                f"only C2b sessions advance as a cohort; this one is {self.service_class.name}",
                field="contract.cohort",
            )


def contract_from_proto(message: contract_pb2.Contract) -> Contract:
    """Parse once, at the edge.

    Raises:
        InvalidInput: as `Contract`; also an enum that is unspecified or unknown here.
    """
    return Contract(
        service_class=enum_member(ServiceClass, message.service_class, "contract.service_class"),
        horizon_ms=message.horizon_ms,
        period_ms=message.period_ms,
        quality_floor_steps=message.quality_floor_steps,
        determinism_tier=enum_member(
            DeterminismTier, message.determinism_tier, "contract.determinism_tier"
        ),
        decode_tier=enum_member(DecodeTier, message.decode_tier, "contract.decode_tier"),
        tier_drop_allowed=message.tier_drop_allowed,
        degraded_consecutive_max=message.degraded_consecutive_max,
        cohort=message.cohort,
    )


def contract_to_proto(contract: Contract) -> contract_pb2.Contract:
    """The wire form; `contract_from_proto` gives back an equal contract."""
    return contract_pb2.Contract(
        service_class=contract_pb2.ServiceClass.Name(contract.service_class),
        horizon_ms=contract.horizon_ms,
        period_ms=contract.period_ms,
        quality_floor_steps=contract.quality_floor_steps,
        determinism_tier=contract_pb2.DeterminismTier.Name(contract.determinism_tier),
        decode_tier=contract_pb2.DecodeTier.Name(contract.decode_tier),
        tier_drop_allowed=contract.tier_drop_allowed,
        degraded_consecutive_max=contract.degraded_consecutive_max,
        cohort=contract.cohort,
    )
