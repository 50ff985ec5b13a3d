"""Incast: movers that nobody has scheduled, into one receiver, over real links."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from tests.fabric.cell import ShapedCell
from tests.fabric.order import IncastOrder
from tests.fabric.run import run

pytestmark = pytest.mark.timeout(180)

CELL = ShapedCell()
#: Of a packet of 1,514 bytes these are the state's: Ethernet, IP, TCP and timestamps are not.
PAYLOAD_SHARE = 1_448 / 1_514
RATE_BYTES_PER_S = CELL.port.rate_bits_per_s / 8 * PAYLOAD_SHARE


@pytest.fixture(scope="module")
def rounds(fabric_possible: None) -> dict[int, list[dict[str, Any]]]:
    """Two rounds for each number of movers, by that number."""
    found = run(IncastOrder(fan_ins=(1, 2, 3), rounds=2), 150.0, CELL)["rounds"]
    by_count: dict[int, list[dict[str, Any]]] = {}
    for each in found:
        by_count.setdefault(len(each["movers"]), []).append(each)
    return by_count


def test_one_mover_alone_is_on_time(rounds: dict[int, list[dict[str, Any]]]) -> None:
    alone = [each["movers"][0] for each in rounds[1]]
    assert min(each["ended_ms"] for each in alone) < CELL.horizon_ms
    # Not below what the link takes, or it is not the link that is measured.
    burst_s = CELL.port.burst_bytes / (CELL.port.rate_bits_per_s / 8)
    link_ms = (CELL.size_bytes / RATE_BYTES_PER_S - burst_s) * 1e3
    assert all(each["ended_ms"] >= link_ms for each in alone)


@pytest.mark.parametrize("count", [2, 3])
def test_of_more_than_one_mover_at_most_one_is_on_time(
    rounds: dict[int, list[dict[str, Any]]], count: int
) -> None:
    """Two states do not pass a port within the horizon, however it is shared."""
    for each in rounds[count]:
        assert sum(mover["on_time"] for mover in each["movers"]) <= 1


def test_the_receiver_takes_in_no_more_from_more_movers(
    rounds: dict[int, list[dict[str, Any]]],
) -> None:
    into = {
        count: median(each["aggregate_bytes_per_s"] for each in of_count)
        for count, of_count in rounds.items()
    }
    burst_bytes = CELL.port.burst_bytes
    most = RATE_BYTES_PER_S * CELL.size_bytes / (CELL.size_bytes - burst_bytes)
    assert all(rate <= most for rate in into.values())


def test_movers_that_nobody_schedules_lose_packets(
    rounds: dict[int, list[dict[str, Any]]],
) -> None:
    assert all(each["dropped_packets"] for each in rounds[3])
