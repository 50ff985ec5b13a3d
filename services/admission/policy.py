"""Policy: the limits that admission's decisions go by."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.admissibility.profile_row import ROW_AGE_MAX_MS
from worldline.fields import non_negative, positive, whole
from worldline.ticket import DURATION_MS_MAX


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits, with their defaults.

    Raises:
        InvalidInput: a limit that no decision can go by; `field` is its name.
    """

    #: Moves in flight into one receiver. Unscheduled fan-in collapses a receiver while every
    #: delivered byte stays correct (paper, section 6.3): 73 / 43 / 25 Gb/s into it for 1 / 2 / 3.
    fan_in_max: int = 1
    #: Moves in flight out of one sender: they share its egress.
    fan_out_max: int = 1
    #: Moves planned into one receiver, the one on its wire included: more than wait usefully.
    queue_max: int = 64
    #: Part of its cost by which a move that is to save something must save more: estimates wobble
    #: by about as much, and a session must not be moved to and fro with them.
    hysteresis: float = 0.1
    #: Holds in all. Nodes are named by callers, so the caps alone do not bound memory.
    holds_max: int = 10_000
    #: Of which one client: a client within its rate could fill them all with moves that never end.
    client_holds_max: int = 2_500
    #: Paths remembered; the one heard of longest ago is forgotten first.
    paths_max: int = 100_000
    #: Clients remembered for their turns and their patience; those heard of longest ago go first.
    clients_max: int = 4_096
    #: Longest that a client is told to stay away for having come back early.
    patience_max_ms: int = 60_000
    #: An estimate that nothing confirmed for this long is measured again before it is believed.
    path_age_max_ms: float = 600_000.0
    #: A row of quanta that nothing confirmed for this long is not believed.
    row_age_max_ms: float = ROW_AGE_MAX_MS
    #: Time from a ticket's issue until both ends ask for the wire: reservation and warm-up.
    valid_for_ms: int = 60_000
    #: The wire is leased for this many times the predicted transfer, within the two bounds.
    lease_factor: float = 4.0
    lease_min_ms: int = 10_000
    lease_max_ms: int = 600_000
    #: What an unmeasured path is leased for (a probe's first look at it): any wire that is slower
    #: is of no use to anybody.
    unmeasured_rate_bytes_per_s: float = 16e6
    #: Part of every period that admission leaves free on a device (paper, section 5). The paper's
    #: own engine uses 375.6 of 400 ms, so a tenth would refuse the one session it was built for.
    guard_band: float = 0.05
    #: When to ask again for a device that is full now: sessions end when their clients leave.
    device_retry_ms: int = 1_000
    #: When to ask again for a path that nobody has measured: a probe takes about this long.
    probe_retry_ms: int = 200

    def __post_init__(self) -> None:
        for name in (
            "fan_in_max",
            "fan_out_max",
            "queue_max",
            "holds_max",
            "client_holds_max",
            "paths_max",
            "clients_max",
        ):
            whole(getattr(self, name), name, at_least=1)
        non_negative(self.hysteresis, "hysteresis", at_most=1.0)
        positive(self.path_age_max_ms, "path_age_max_ms")
        positive(self.row_age_max_ms, "row_age_max_ms")
        whole(self.valid_for_ms, "valid_for_ms", at_least=1, at_most=DURATION_MS_MAX)
        positive(self.lease_factor, "lease_factor", at_least=1.0)
        whole(self.lease_min_ms, "lease_min_ms", at_least=1, at_most=DURATION_MS_MAX)
        whole(
            self.lease_max_ms, "lease_max_ms", at_least=self.lease_min_ms, at_most=DURATION_MS_MAX
        )
        positive(self.unmeasured_rate_bytes_per_s, "unmeasured_rate_bytes_per_s", at_least=1.0)
        non_negative(self.guard_band, "guard_band", at_most=0.9)
        whole(self.device_retry_ms, "device_retry_ms", at_least=1)
        whole(self.patience_max_ms, "patience_max_ms", at_least=1, at_most=DURATION_MS_MAX)
        whole(self.probe_retry_ms, "probe_retry_ms", at_least=1)

    def lease_ms(self, transfer_ms: float) -> int:
        """The lease for a transfer predicted to take `transfer_ms`."""
        wanted_ms = min(self.lease_factor * transfer_ms, float(self.lease_max_ms))
        return max(round(wanted_ms), self.lease_min_ms)
