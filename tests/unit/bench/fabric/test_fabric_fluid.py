"""Fluid fabric: bytes, links and the stalls."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.fabric.cell import GBIT_PER_S, STATE_BYTES, Cell
from bench.fabric.flow import Flow, new_flow
from bench.fabric.fluid import Fabric
from bench.fabric.shares import set_rates
from tests.unit.bench.fabric.scripted import Scripted

CELL = Cell()
#: Section 6.3, in Gb/s, however many flows. Written out, so that the cell can be wrong.
INTO_RECEIVER = 73.0
#: Relative; rates are sums and quotients of floats.
ROUNDING = 1e-9


def state(source: str, target: str, name: str = "") -> Flow:
    """A whole state between two nodes."""
    return new_flow(
        name or f"{source}-{target}", source, target, float(STATE_BYTES), CELL.flow_bytes_per_s
    )


def ends_of(fabric: Fabric, flows: list[Flow]) -> dict[str, float]:
    """Start all now; when each ended."""
    for flow in flows:
        fabric.start(flow)
    ends_s: dict[str, float] = {}
    while fabric.flows:
        for flow in fabric.advance(fabric.next_s()):
            ends_s[flow.flow_id] = fabric.now_s
    return ends_s


@st.composite
def starts(draw: st.DrawFn) -> list[tuple[float, Flow]]:
    """Flows of any size between any nodes, in order of time."""
    count = draw(st.integers(1, 12))
    made: list[tuple[float, Flow]] = []
    for number in range(count):
        source, target = draw(st.permutations(CELL.nodes))[:2]
        size_bytes = draw(st.floats(1e6, 4e9))
        cap = CELL.flow_bytes_per_s * draw(st.floats(0.5, 1.0))
        flow = new_flow(f"flow-{number}", source, target, size_bytes, cap)
        made.append((draw(st.floats(0.0, 2.0)), flow))
    return sorted(made, key=lambda start: start[0])


@given(planned=starts(), seed=st.integers(0, 1000))
def test_every_byte_arrives_once_and_no_link_carries_more_than_it_can(
    planned: list[tuple[float, Flow]], seed: int
) -> None:
    stormy = dataclasses.replace(CELL, stalls_per_extra_flow_s=5.0)
    fabric = Fabric(stormy, random.Random(seed))
    flows = [flow for _, flow in planned]
    arrived: Counter[str] = Counter()
    while planned or fabric.flows:
        at_s = min([start_s for start_s, _ in planned[:1]] + [fabric.next_s()])
        passed_s = at_s - fabric.now_s
        check_links(fabric.flows)
        for flow in fabric.flows:
            arrived[flow.flow_id] += flow.rate_bytes_per_s * passed_s  # type: ignore[assignment]
        ended = fabric.advance(at_s)
        assert all(flow.left_bytes == 0 for flow in ended)
        assert all(flow.left_bytes > 0 for flow in fabric.flows)
        while planned and planned[0][0] <= at_s:
            fabric.start(planned.pop(0)[1])
    for flow in flows:
        # One byte: less than that left is the end of a flow.
        assert arrived[flow.flow_id] == pytest.approx(flow.size_bytes, rel=ROUNDING, abs=1.0)


def check_links(flows: list[Flow]) -> None:
    """Caps, egress and ingress, against figures that are not computed by the fabric."""
    out: Counter[str] = Counter()
    into: Counter[str] = Counter()
    for flow in flows:
        assert 0 <= flow.rate_bytes_per_s <= flow.cap_bytes_per_s * (1 + ROUNDING)
        assert (flow.rate_bytes_per_s == 0) == bool(flow.resume_s)
        out[flow.source] += flow.rate_bytes_per_s  # type: ignore[assignment]
        into[flow.target] += flow.rate_bytes_per_s  # type: ignore[assignment]
    for node, rate in out.items():
        assert rate <= (54 if node == "n3" else 100) * GBIT_PER_S * (1 + ROUNDING)
    for rate in into.values():
        assert rate <= INTO_RECEIVER * GBIT_PER_S * (1 + ROUNDING)


@pytest.mark.parametrize("fan_in", [1, 2, 3])
def test_without_stalls_a_receiver_is_shared_cleanly(fan_in: int) -> None:
    fabric = Fabric(CELL, Scripted())
    # The slow sender is no bottleneck beside others: 54 is more than any share of 73.
    flows = [state(source, "n0") for source in ("n1", "n2", "n3")[:fan_in]]
    ends_s = ends_of(fabric, flows)
    expected_s = fan_in * STATE_BYTES / (INTO_RECEIVER * GBIT_PER_S)
    assert list(ends_s.values()) == pytest.approx([expected_s] * fan_in, rel=ROUNDING)


def test_heterogeneity_is_the_senders() -> None:
    for source, gbit_per_s in {"n1": 73.0, "n3": 54.0}.items():
        ends_s = ends_of(Fabric(CELL, Scripted()), [state(source, "n0")])
        expected_s = STATE_BYTES / (gbit_per_s * GBIT_PER_S)
        assert ends_s[f"{source}-n0"] == pytest.approx(expected_s, rel=ROUNDING)


def test_receivers_apart_do_not_disturb_each_other_and_fan_out_fills_the_egress() -> None:
    apart = [state("n1", "n0"), state("n2", "n3")]
    set_rates(apart, CELL)
    assert [flow.rate_bytes_per_s for flow in apart] == [73.0 * GBIT_PER_S] * 2
    out = [state("n1", node) for node in ("n0", "n2", "n3")]
    set_rates(out, CELL)
    assert sum(flow.rate_bytes_per_s for flow in out) == pytest.approx(100 * GBIT_PER_S)


def test_what_a_shared_receiver_leaves_of_a_sender_goes_to_its_other_flow() -> None:
    flows = [state("n1", "n0"), state("n2", "n0"), state("n1", "n3")]
    set_rates(flows, CELL)
    rates = [flow.rate_bytes_per_s / GBIT_PER_S for flow in flows]
    assert rates == pytest.approx([36.5, 36.5, 63.5])


@pytest.mark.parametrize("stall_s", [0.536, 2.147])
@pytest.mark.parametrize("onset_s", [0.001, 0.1, 0.3])
def test_a_stall_delays_exactly_by_its_length(stall_s: float, onset_s: float) -> None:
    cell = dataclasses.replace(CELL, stall_s=stall_s)
    pair = ("n1", "n0"), ("n2", "n0")
    elsewhere = ("n0", "n3")
    calm = ends_of(Fabric(cell, Scripted()), [state(*ends) for ends in (*pair, elsewhere)])
    # The first hazard asked for is that of n0, the first node; a pair uses it up at that rate.
    stalled_fabric = Fabric(cell, Scripted([onset_s * cell.stalls_per_extra_flow_s]))
    stalled = ends_of(stalled_fabric, [state(*ends) for ends in (*pair, elsewhere)])
    assert stalled_fabric.episodes == 1
    assert stalled["n1-n0"] - calm["n1-n0"] == pytest.approx(stall_s, abs=1e-9)
    assert stalled["n2-n0"] - calm["n2-n0"] == pytest.approx(stall_s, abs=1e-9)
    assert stalled["n0-n3"] == calm["n0-n3"]


def test_a_third_flow_brings_the_stall_in_half_the_time() -> None:
    sources = ("n1", "n2", "n3")
    onsets = []
    for fan_in in (2, 3):
        fabric = Fabric(CELL, Scripted([0.5]))
        for source in sources[:fan_in]:
            fabric.start(state(source, "n0"))
        while not fabric.episodes:
            fabric.advance(fabric.next_s())
        onsets.append(fabric.now_s)
    assert onsets[0] == pytest.approx(2 * onsets[1])


def test_flows_that_never_overlap_never_stall() -> None:
    stormy = dataclasses.replace(CELL, stalls_per_extra_flow_s=100.0)
    fabric = Fabric(stormy, random.Random(1))
    ends_of(fabric, [state("n1", "n0"), state("n2", "n3")])
    assert fabric.episodes == 0
    ends_of(fabric, [state("n1", "n0"), state("n2", "n0")])
    assert fabric.episodes > 0
