"""CPU: the payload between two processes of this machine, in one race for each set of lanes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from bench.contestant import Contestant
from bench.movers import Movers
from bench.pair import Pair
from bench.payload import Payload
from bench.peers.ucx_perftest import UcxPerftest
from bench.rates import RaceRow, RateRow, RatioRow, evaluate, needed
from bench.rounds import Say, race
from bench.row import Bar, Row, RowSpec, at_least
from bench.suite import Options
from bench.worldline_push import Pushes, Route

#: A message of the mover's chunk size would fit a cache, which the state does not; from here on
#: the tool's rate no longer depends on the size.
PERFTEST_MESSAGE_BYTES = 64 << 20
#: What the mover sets by itself where the environment does not say otherwise.
_TCP = {"UCX_TCP_TX_SEG_SIZE": "1m", "UCX_TCP_RX_SEG_SIZE": "2m"}
_LANES: Mapping[str, Mapping[str, str]] = {
    "host": {},
    "posix": {"UCX_TLS": "posix,self"},
    "cma": {"UCX_TLS": "posix,cma,self"},
    "tcp": {"UCX_TLS": "tcp,self"},
}
_NIXL = ("nixl", "nixl-no-progress-thread", "nixl-tcp")


@dataclass(frozen=True, slots=True)
class Peer:
    """Who else moves the payload: the module with its sides, and how it is set up."""

    name: str
    module: str
    options: Mapping[str, str]
    env: Mapping[str, str]


PEERS = (
    Peer("nixl", "nixl_", {"progress_thread": "y"}, {}),
    Peer("nixl-no-progress-thread", "nixl_", {"progress_thread": "n"}, {}),
    Peer("nixl-tcp", "nixl_", {"progress_thread": "n"}, {"UCX_TLS": "tcp"}),
    Peer("mooncake", "mooncake_", {}, {}),
    Peer("gloo", "gloo", {}, {}),
    Peer("torchft-http", "torchft_", {"transport": "http"}, {}),
    Peer("torchft-pg", "torchft_", {"transport": "pg"}, {}),
    Peer("sockets-1", "sockets", {"streams": "1"}, {}),
    Peer("sockets-4", "sockets", {"streams": "4"}, {}),
    Peer("safetensors", "safetensors_", {}, {}),
    Peer("torch-save", "torchsave", {}, {}),
)


def _rate(lanes: str, name: str, *, verified: bool) -> RateRow:
    return RateRow(RowSpec(f"{lanes}.{name}", "GB/s", verified=verified), name)


def _ratio(name: str, bar: Bar, over: str, *under: str) -> RatioRow:
    return RatioRow(RowSpec(name, "x", bar), over, under)


def _lane_rows(lanes: str, *ratios: RatioRow) -> tuple[RaceRow, ...]:
    return (
        _rate(lanes, "worldline", verified=True),
        _rate(lanes, "worldline-off", verified=False),
        _rate(lanes, "ucx-perftest", verified=False),
        *ratios,
    )


RACES: Mapping[str, tuple[RaceRow, ...]] = {
    "host": (
        _rate("host", "worldline", verified=True),
        _rate("host", "worldline-off", verified=False),
        *(_rate("host", peer.name, verified=False) for peer in PEERS),
        _ratio("host.worldline-over-nixl", at_least(1.0), "worldline", *_NIXL),
    ),
    "posix": _lane_rows(
        "posix",
        _ratio("posix.verified-over-off", at_least(0.85), "worldline", "worldline-off"),
        _ratio("posix.off-over-perftest", at_least(0.90), "worldline-off", "ucx-perftest"),
    ),
    "cma": _lane_rows(
        "cma",
        _ratio("cma.verified-over-off", at_least(0.95), "worldline", "worldline-off"),
        _ratio("cma.off-over-perftest", at_least(0.90), "worldline-off", "ucx-perftest"),
    ),
    "tcp": _lane_rows(
        "tcp",
        _ratio("tcp.verified-over-perftest", at_least(0.90), "worldline", "ucx-perftest"),
    ),
}
OWN = frozenset({"worldline", "worldline-off"})


class CpuRace:
    """The suite of one set of lanes."""

    def __init__(self, lanes: str) -> None:
        self._lanes = lanes
        self._rows = RACES[lanes]

    @property
    def specs(self) -> Sequence[RowSpec]:
        """See `Suite.specs`."""
        return [row.spec for row in self._rows]

    def measure(self, wanted: Collection[str], options: Options, say: Say) -> list[Row]:
        """See `Suite.measure`."""
        rows = [row for row in self._rows if row.spec.name in wanted]
        if not rows:
            return []
        say(f"{self._lanes}: filling {options.layout_name}'s state with random bytes")
        payload = Payload(options.layout_name, options.seed)
        say(f"{self._lanes}: everybody's memory is in {payload.pages} pages")
        try:
            with asyncio.Runner() as runner:
                field = _field(self._lanes, payload, runner)
                names = [name for name in field if name in needed(rows)]
                contestants = [field[name]() for name in names]
                table = race(
                    contestants, options.repeats, lambda text: say(f"{self._lanes}: {text}")
                )
            return [evaluate(row, table, payload.size_bytes, OWN) for row in rows]
        finally:
            payload.close()


def _movers(payload: Payload, lanes: str) -> Movers:
    variables = {"huge_pages": payload.huge_pages.value}
    return Movers(payload.layout.extent_bytes, env=_LANES[lanes], variables=variables)


def _field(
    lanes: str, payload: Payload, runner: asyncio.Runner
) -> dict[str, Callable[[], Contestant]]:
    """Everybody who can take part, in the order of their turns; made when wanted."""
    env = {**_TCP, **_LANES[lanes]}
    route = Route(_movers(payload, lanes), payload)
    size_bytes = payload.size_bytes

    def push(name: str, placement: str = "") -> Callable[[], Contestant]:
        return lambda: Pushes(name, runner, route, placement)

    def peer(it: Peer) -> Callable[[], Contestant]:
        module = f"bench.peers.{it.module}"
        return lambda: Pair(it.name, module, payload, options=it.options, env=it.env)

    return {
        "worldline": push("worldline"),
        "worldline-off": push("worldline-off", "off"),
        "ucx-perftest": lambda: UcxPerftest(
            "ucx-perftest", size_bytes, PERFTEST_MESSAGE_BYTES, env
        ),
        **{it.name: peer(it) for it in PEERS},
    }
