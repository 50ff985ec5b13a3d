"""GPU suite: moves between two GPUs or on one, states parked from one, and their bars."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.contestant import Contestant
from bench.gpu.blanks import WRITE_MS, Looks, Played
from bench.gpu.parks import Desk, PinnedCopies, Resumes, Suspends
from bench.movers import SOURCE, TARGET, Movers
from bench.pair import Pair
from bench.payload import QWEN, Payload
from bench.rates import FigureRow, RaceRow, RatioRow, TimeRow, evaluate, needed
from bench.rounds import Say, race
from bench.row import Bar, Row, RowSpec, at_least, at_most, below
from bench.suite import Options
from bench.worldline_push import CALLER_MS, EXPOSED_MS, Pushes, RoundTrips, Route
from services.engine.device import describe_device
from services.mover.settings import MoverSettings
from worldline.cuda.availability import unavailable_reason
from worldline.cuda.devices import devices

#: Moves are short: so many rounds for each that is asked for.
_ROUNDS_PER_REPEAT = 10
#: Seconds each.
_SAVE_LOAD_RUNS = 3
#: As between hosts whose network takes host memory only; half a second each.
_HOST_LANES = {"UCX_TLS": "tcp,cuda_copy"}
_STAGED_RUNS = 5

Field = dict[str, Callable[[], Contestant]]


def _time(name: str, contestant: str, bar: Bar | None = None, *, verified: bool) -> TimeRow:
    return TimeRow(RowSpec(f"gpu.{name}", "ms", bar, verified=verified), contestant)


def _slowdown(name: str, limit: float, over: str, under: str) -> RatioRow:
    return RatioRow(RowSpec(f"gpu.{name}", "x", at_most(limit)), over, (under,), of_times=True)


MOVES: tuple[RaceRow, ...] = (
    _time("move", "worldline", at_most(5.5), verified=True),
    _time("move-tail", "worldline-tail", verified=True),
    _time("move-pipelined", "worldline-pipelined", verified=True),
    _time("move-sequential", "worldline-sequential", verified=True),
    _time("move-off", "worldline-off", verified=False),
    _time("raw-ucx", "raw-ucx", verified=False),
    _slowdown("move-over-raw-ucx", 1.15, "worldline", "raw-ucx"),
    FigureRow(RowSpec("gpu.move-at-the-caller", "ms"), "worldline", CALLER_MS),
    FigureRow(RowSpec("gpu.exposed-verification", "ms", at_most(1.0)), "worldline", EXPOSED_MS),
    _time("save-load", "save-load", verified=False),
    RatioRow(RowSpec("gpu.move-over-save-load", "x", at_least(350)), "worldline", ("save-load",)),
)
PARKS: tuple[RaceRow, ...] = (
    _time("suspend", "suspend", verified=True),
    _time("resume", "resume", verified=True),
    _time("pinned-copy-out", "copy-out", verified=False),
    _time("pinned-copy-in", "copy-in", verified=False),
    _slowdown("suspend-over-copy", 1.05, "suspend", "copy-out"),
    _slowdown("resume-over-copy", 1.05, "resume", "copy-in"),
)
BLANKS: tuple[RaceRow, ...] = (
    _time("blanks-look", "look", verified=False),
    FigureRow(RowSpec("gpu.blanks-write", "ms"), "look", WRITE_MS),
    _time("blanks-move", "played", verified=True),
    _time("blanks-move-full", "full", verified=True),
    RatioRow(RowSpec("gpu.blanks-move-over-full", "x"), "played", ("full",), of_times=True),
    _time("blanks-staged", "played-staged", verified=True),
    _time("blanks-staged-full", "full-staged", verified=True),
    RatioRow(
        RowSpec("gpu.blanks-staged-over-full", "x"),
        "played-staged",
        ("full-staged",),
        of_times=True,
    ),
)
ROUND_TRIP: tuple[RaceRow, ...] = (
    _time("qwen-round-trip", "round-trip", below(1.5), verified=True),
)
OWN = frozenset(
    {
        *("worldline", "suspend", "resume", "round-trip", "look"),
        *("played", "full", "played-staged", "full-staged"),
        *(f"worldline-{placement}" for placement in ("tail", "pipelined", "sequential", "off")),
    }
)


@dataclass(frozen=True, slots=True)
class GpuRace:
    """One race on GPUs: its rows, what it needs, and who takes part.

    The payload is `layout_name`; empty: the one of the options.
    """

    rows: tuple[RaceRow, ...]
    devices_needed: int
    field: Callable[[Payload, asyncio.Runner], Field]
    layout_name: str = ""
    payload: Callable[[str, int], Any] = Payload

    @property
    def specs(self) -> Sequence[RowSpec]:
        """See `Suite.specs`."""
        return [row.spec for row in self.rows]

    def measure(self, wanted: Collection[str], options: Options, say: Say) -> list[Row]:
        """See `Suite.measure`."""
        rows = [row for row in self.rows if row.spec.name in wanted]
        reason = _reason(self.devices_needed)
        if reason is not None or not rows:
            return [row.spec.skipped(str(reason)) for row in rows]
        rounds = options.repeats * (1 if options.quick else _ROUNDS_PER_REPEAT)
        payload = self.payload(self.layout_name or options.layout_name, options.seed)
        try:
            with asyncio.Runner() as runner:
                field, names = self.field(payload, runner), needed(rows)
                contestants = [make() for name, make in field.items() if name in names]
                table = race(contestants, rounds, lambda text: say(f"gpu: {text}"))
            return [evaluate(row, table, payload.size_bytes, OWN) for row in rows]
        finally:
            payload.close()


def gpu_races() -> list[GpuRace]:
    """In the order of the table."""
    return [
        GpuRace(MOVES, 2, _moving),
        GpuRace(PARKS, 1, _parking),
        GpuRace(BLANKS, 1, _leaving_zeros, payload=Played),
        GpuRace(ROUND_TRIP, 2, _travelling, QWEN),
    ]


def _moving(payload: Payload, runner: asyncio.Runner) -> Field:
    route = Route(_movers(payload, 2), payload)

    def push(placement: str) -> Callable[[], Contestant]:
        name = f"worldline-{placement}" if placement else "worldline"
        return lambda: Pushes(name, runner, route, placement)

    def raw_ucx() -> Contestant:
        chunk_bytes = MoverSettings.model_fields["device_chunk_bytes"].default
        options = {"source": "0", "target": "1", "chunk_bytes": str(chunk_bytes)}
        note = f"chunks of {chunk_bytes:,} bytes"
        return Pair("raw-ucx", "bench.gpu.raw_ucx", payload, options=options, note=note)

    def save_load() -> Contestant:
        options = {"source": "cuda:0", "target": "cuda:1"}
        module = "bench.peers.torchsave"
        return Pair("save-load", module, payload, options=options, runs_max=_SAVE_LOAD_RUNS)

    pushes = {one().name: one for one in map(push, ("", "tail", "pipelined", "sequential", "off"))}
    return {**pushes, "raw-ucx": raw_ucx, "save-load": save_load}


def _parking(payload: Payload, runner: asyncio.Runner) -> Field:
    desk = Desk(_movers(payload, 1), payload)
    return {
        "suspend": lambda: Suspends("suspend", runner, desk),
        "resume": lambda: Resumes("resume", runner, desk),
        "copy-out": lambda: PinnedCopies("copy-out", payload, 0, outward=True),
        "copy-in": lambda: PinnedCopies("copy-in", payload, 0, outward=False),
    }


def _leaving_zeros(payload: Played, runner: asyncio.Runner) -> Field:
    def push(name: str, moved: Payload, env: Mapping[str, str] | None = None) -> Pushes:
        pushes = Pushes(name, runner, Route(_movers(moved, 1, env), moved))
        if env is not None:
            pushes.runs_max = _STAGED_RUNS
        return pushes

    return {
        "look": lambda: Looks("look", "cuda:0", payload),
        "played": lambda: push("played", payload),
        "full": lambda: push("full", payload.full),
        "played-staged": lambda: push("played-staged", payload, _HOST_LANES),
        "full-staged": lambda: push("full-staged", payload.full, _HOST_LANES),
    }


def _travelling(payload: Payload, runner: asyncio.Runner) -> Field:
    route = Route(_movers(payload, 2), payload)
    return {"round-trip": lambda: RoundTrips("round-trip", runner, route)}


def _movers(payload: Payload, devices_used: int, env: Mapping[str, str] | None = None) -> Movers:
    ends = dict(zip((SOURCE, TARGET), (0, devices_used - 1), strict=True))
    used = {node: describe_device(f"cuda:{index}") for node, index in ends.items()}
    return Movers(payload.layout.extent_bytes, env=env or {}, devices=used)


def _reason(devices_needed: int) -> str | None:
    """Why these rows cannot be measured here."""
    reason = unavailable_reason()
    if reason is not None:
        return reason
    count = len(devices())
    return None if count >= devices_needed else f"{count} GPU here, {devices_needed} are needed"
