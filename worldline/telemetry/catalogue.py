"""Catalogue: every metric that Worldline reports, and what each means.

Names and units follow OpenTelemetry's conventions (semantic-conventions v1.45,
docs/general/naming.md and docs/general/metrics.md): units in UCUM, counted things in braces,
durations in seconds, no plural and no `total` where something is up and down.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from worldline.telemetry.labels import Label
from worldline.verdict import RejectReason


class Kind(Enum):
    """What is done with a metric's figures; the value is what the documentation calls it."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    #: Read when somebody collects.
    OBSERVED_COUNTER = "counter, observed"
    OBSERVED_SUM = "up-down counter, observed"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `services` are those that report it; `bounds` a histogram's, in its unit."""

    name: str
    kind: Kind
    unit: str
    description: str
    services: tuple[str, ...]
    labels: tuple[Label, ...] = ()
    bounds: tuple[float, ...] = ()


#: Frozen times run from a few milliseconds (paper, section 7) to tens of seconds on CPUs.
_DURATIONS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
#: From a tunnel to NVLink.
_RATES_BYTES_PER_S = (
    1e6, 1e7, 2.5e7, 5e7, 1e8, 2.5e8, 5e8, 1e9, 2.5e9, 5e9, 1e10, 2.5e10, 5e10, 1e11, 2.5e11, 5e11,
)  # fmt: skip

OUTCOME = Label("worldline.outcome", frozenset({"committed", "aborted", "rejected"}))
#: Of failures; empty where there is none.
REASON = Label("worldline.reason")
VERDICT = Label("worldline.reason", frozenset({"admitted", *RejectReason.__members__}))
TIMELINESS = Label("worldline.timeliness", frozenset({"on_time", "missed"}))
PHASE = Label(
    "worldline.phase",
    frozenset({"admit", "reserve", "arm", "freeze", "push", "verify", "attach", "commit", "thaw"}),
)
SESSION_STATE = Label(
    "worldline.state",
    frozenset({"opening", "live", "moving", "suspending", "suspended", "resuming", "lost"}),
)
LEASE = Label("worldline.lease", frozenset({"node", "engine", "hold", "reservation"}))
REAPED = Label(
    "worldline.reaped",
    frozenset({"session", "opening", "hold", "reservation", "slot", "parked"}),
)
DIRECTION = Label("network.io.direction", frozenset({"transmit", "receive"}))
SOURCE = Label("worldline.source")
TARGET = Label("worldline.target")
VERIFIED = Label("worldline.verified", frozenset({"true", "false"}))
VERIFICATION = Label("worldline.verification", frozenset({"landing", "read_back"}))
ROLE = Label("worldline.role", frozenset({"free", "shadow", "live", "quarantined"}))
PRESET = Label("worldline.preset")
EXPORTER = Label("worldline.exporter", frozenset({"store", "collector"}))

EVERY_SERVICE = ("admission", "placement", "mover", "engine")

MOVES = Metric(
    "worldline.moves",
    Kind.COUNTER,
    "{move}",
    "Moves that ended, by how and why",
    ("placement",),
    (OUTCOME, REASON),
)
MOVE_DEADLINES = Metric(
    "worldline.move.deadlines",
    Kind.COUNTER,
    "{move}",
    "Moves that committed within their session's horizon, and those that did not",
    ("placement",),
    (TIMELINESS,),
)
MOVE_FROZEN = Metric(
    "worldline.move.frozen.duration",
    Kind.HISTOGRAM,
    "s",
    "From the source's freeze to the target's activation",
    ("placement",),
    (OUTCOME,),
    _DURATIONS_S,
)
MOVE_PHASE = Metric(
    "worldline.move.phase.duration",
    Kind.HISTOGRAM,
    "s",
    "One phase of a move",
    ("placement",),
    (PHASE,),
    _DURATIONS_S,
)
SESSIONS = Metric(
    "worldline.session.count",
    Kind.OBSERVED_SUM,
    "{session}",
    "Sessions that are not closed, by state",
    ("placement",),
    (SESSION_STATE,),
)
LEASES = Metric(
    "worldline.lease.count",
    Kind.OBSERVED_SUM,
    "{lease}",
    "Leases in force: of nodes and engines, admission's holds, movers' reservations",
    ("placement", "admission", "mover"),
    (LEASE,),
)
REAPS = Metric(
    "worldline.reaps",
    Kind.COUNTER,
    "{reap}",
    "What a reaper ended because nobody else had",
    ("placement", "admission", "mover"),
    (REAPED,),
)
VERDICTS = Metric(
    "worldline.admission.verdicts",
    Kind.COUNTER,
    "{verdict}",
    "Verdicts, by reason",
    ("admission",),
    (VERDICT,),
)
PATH_RATE = Metric(
    "worldline.path.rate",
    Kind.HISTOGRAM,
    "By/s",
    "Rate of one push until its last digest was compared; of a probe until its last byte",
    ("admission",),
    (SOURCE, TARGET, VERIFIED),
    _RATES_BYTES_PER_S,
)
PATH_MISMATCHES = Metric(
    "worldline.path.mismatches",
    Kind.COUNTER,
    "{mismatch}",
    "Pushes whose bytes differed at the target",
    ("mover",),
    (SOURCE, TARGET),
)
WIRE_IO = Metric(
    "worldline.wire.io",
    Kind.COUNTER,
    "By",
    "Bytes put on the wire, and taken off it, by pushes that ended well",
    ("mover",),
    (DIRECTION,),
)
WIRE_WAIT = Metric(
    "worldline.wire.wait.duration",
    Kind.HISTOGRAM,
    "s",
    "From the request for a wire to its grant, or to the end of its wait",
    ("mover",),
    (DIRECTION,),
    _DURATIONS_S,
)
VERIFY = Metric(
    "worldline.verify.duration",
    Kind.HISTOGRAM,
    "s",
    "Verification after the last byte had landed, and of staged bytes read back",
    ("mover",),
    (VERIFICATION,),
    _DURATIONS_S,
)
SLOTS = Metric(
    "worldline.slot.count", Kind.OBSERVED_SUM, "{slot}", "Slots, by role", ("mover",), (ROLE,)
)
BLOCKS = Metric(
    "worldline.blocks", Kind.COUNTER, "{block}", "Blocks generated", ("engine",), (PRESET,)
)
BLOCK = Metric(
    "worldline.block.duration",
    Kind.HISTOGRAM,
    "s",
    "Generation of one block",
    ("engine",),
    (PRESET,),
    _DURATIONS_S,
)
QUANTUM = Metric(
    "worldline.quantum.duration",
    Kind.HISTOGRAM,
    "s",
    "One quantum: a model pass that nothing interrupts",
    ("engine",),
    (PRESET,),
    _DURATIONS_S,
)
MISSED_PERIODS = Metric(
    "worldline.missed_periods",
    Kind.COUNTER,
    "{period}",
    "Blocks generated after the deadline that their contract's period gives them",
    ("engine",),
    (PRESET,),
)
SKIPPED_RELEASES = Metric(
    "worldline.skipped_releases",
    Kind.COUNTER,
    "{release}",
    "Releases of a contract's period that passed without a block, because the one before was late",
    ("engine",),
    (PRESET,),
)
DEGRADED_BLOCKS = Metric(
    "worldline.degraded_blocks",
    Kind.COUNTER,
    "{block}",
    "Blocks generated from fewer denoising steps than full quality has, as their contract allows",
    ("engine",),
    (PRESET,),
)
SPANS_DROPPED = Metric(
    "worldline.spans.dropped",
    Kind.OBSERVED_COUNTER,
    "{span}",
    "Spans that an exporter did not take, or that found its queue full",
    EVERY_SERVICE,
    (EXPORTER,),
)

METRICS = (
    MOVES, MOVE_DEADLINES, MOVE_FROZEN, MOVE_PHASE, SESSIONS, LEASES, REAPS, VERDICTS, PATH_RATE,
    PATH_MISMATCHES, WIRE_IO, WIRE_WAIT, VERIFY, SLOTS, BLOCKS, BLOCK, QUANTUM, MISSED_PERIODS,
    SKIPPED_RELEASES, DEGRADED_BLOCKS, SPANS_DROPPED,
)  # fmt: skip
