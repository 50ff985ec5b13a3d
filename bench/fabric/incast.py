"""Incast: K whole states into one receiver at once (paper, section 6.3, Table 3), on this cell.

The experiment that the cell is calibrated by, played on the cell itself: the collapse is measured,
never put in.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.fabric.cell import GBIT_PER_S, STATE_BYTES, Cell
from bench.fabric.flow import new_flow
from bench.fabric.fluid import Fabric
from bench.fabric.streams import stream

#: Table 3: fan-in, Gb/s a move, Gb/s into the receiver; section 6.5: the share of incasts of two
#: that stall (nothing is said of the others).
PAPER = ((1, 73.0, 73.0, None), (2, 20.4, 43.0, 2 / 3), (3, 7.8, 25.0, None))
#: Enough for a mean within a few percent.
REPETITIONS = 1000


@dataclass(frozen=True, slots=True)
class Incast:
    """Means over the repetitions. Into the receiver: all bytes over the time of the last of them.

    `move_gbit_per_s` is a mean of rates, not the rate of the mean time: so the paper's two columns
    agree (2 x 20.4 is about 43), although its stalls differ by seconds.
    """

    fan_in: int
    move_gbit_per_s: float
    receiver_gbit_per_s: float
    stalled: float


def incast(cell: Cell, fan_in: int, seeds: Sequence[int] = range(REPETITIONS)) -> Incast:
    """`fan_in` movers behind one barrier, each from a node of its own, into the first node."""
    moves: list[float] = []
    receiver: list[float] = []
    stalled = 0
    for seed in seeds:
        fabric = Fabric(cell, stream(seed, "incast/stalls"))
        for source in cell.nodes[1 : fan_in + 1]:
            size_bytes = float(STATE_BYTES)
            rate = cell.flow_bytes_per_s
            fabric.start(new_flow(source, source, cell.nodes[0], size_bytes, rate))
        while fabric.flows:
            ended = fabric.advance(fabric.next_s())
            moves += [flow.size_bytes / fabric.now_s / GBIT_PER_S for flow in ended]
        receiver.append(fan_in * STATE_BYTES / fabric.now_s / GBIT_PER_S)
        stalled += fabric.episodes > 0
    return Incast(fan_in, statistics.mean(moves), statistics.mean(receiver), stalled / len(seeds))
