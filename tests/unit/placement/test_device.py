"""Devices: what they may be, how engines find theirs, how near two places are."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.placement import node_table
from services.placement.choose import Chosen
from services.placement.device import DeviceRecord, Nearness, Place, device_named, nearness
from services.placement.fleet import Fleet
from services.placement.records import EngineRecord, NodeRecord
from services.placement.schema import open_directory
from services.placement.wire import device_to_proto, node_from_proto
from tests.unit.placement.makers import EQUAL, OTHER_TORCH, candidate, contract, entry, session
from tests.unit.placement.test_choose import best, wish
from worldline.errors import InvalidInput, NotFound
from worldline.rpc.channel import PROTOCOL_VERSION
from worldline.v1 import placement_pb2

A, B, C = "GPU-a", "GPU-b", "GPU-c"
HERE, THERE = "boot-1", "boot-2"


def gpu(name: str, uuid: str, *peers: str, slots: int = 2) -> DeviceRecord:
    return DeviceRecord(name, slots, 1 << 20, uuid, 0, peers[:1], peers[1:])


def node_of(name: str, *devices: DeviceRecord, host_id: str = HERE) -> NodeRecord:
    return NodeRecord(f"n{name}", f"127.0.0.1:100{name}", "j1", host_id, devices)


def engine_on(name: str, device: str, uuid: str = "", node: str = "1") -> EngineRecord:
    address = f"127.0.0.1:200{name}"
    return EngineRecord(f"e{name}", f"n{node}", address, device, EQUAL, "i1", uuid)


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [
        (Place(HERE, A, (B,)), Place(HERE, B, (A,)), Nearness.NVLINK),
        (Place(HERE, A, (B,)), Place(HERE, B), Nearness.NVLINK),
        (Place(HERE, A), Place(HERE, B, (A,)), Nearness.NVLINK),
        (Place(HERE, A, (B,)), Place(THERE, B), Nearness.NVLINK),
        (Place(HERE, A, (B,), (C,)), Place(HERE, B), Nearness.NVLINK),
        (Place(HERE, A, (), (B,)), Place(HERE, B, (), (A,)), Nearness.PCIE),
        (Place(HERE, A, (B,)), Place(HERE, C, (), (A,)), Nearness.PCIE),
        (Place(HERE, A, (), (B,)), Place(HERE), Nearness.SAME_HOST),
        (Place(HERE, A, (), (B,)), Place(THERE, B), Nearness.ELSEWHERE),
        (Place(HERE, A, (B,)), Place(HERE, C), Nearness.SAME_HOST),
        (Place(HERE, A, (B,)), Place(HERE), Nearness.SAME_HOST),
        (Place(HERE), Place(HERE), Nearness.SAME_HOST),
        (Place(HERE, A, (B,)), Place(THERE, C, (B,)), Nearness.ELSEWHERE),
        (Place(HERE), Place(THERE), Nearness.ELSEWHERE),
    ],
)
def test_what_lies_between_two_places(source: Place, target: Place, wanted: Nearness) -> None:
    assert nearness(source, target) is wanted


places = st.builds(
    Place,
    st.sampled_from([HERE, THERE]),
    st.sampled_from(["", A, B]),
    st.lists(st.sampled_from([A, B, C]), unique=True).map(tuple),
    st.lists(st.sampled_from([A, B, C]), unique=True).map(tuple),
)


@given(places, places)
def test_nearness_is_the_same_both_ways(one: Place, other: Place) -> None:
    assert nearness(one, other) is nearness(other, one)


def test_a_move_stays_as_near_as_it_can() -> None:
    linked = candidate("1", place=Place(HERE, B))
    beside = candidate("2", place=Place(HERE, C), slots_free=3)
    away = candidate("3", place=Place(THERE), slots_free=4)
    fleet = (away, beside, linked)
    near = wish(source=Place(HERE, A, (B,)))
    assert best(fleet, near) == Chosen("e1")
    assert best((away, beside), near) == Chosen("e2")
    assert best((away,), near) == Chosen("e3")


def test_equal_fingerprints_come_before_near_ones() -> None:
    allowed = wish(source=Place(HERE, A, (B,)), contract=contract(tier_drop_allowed=True))
    near = candidate("1", place=Place(HERE, B), fingerprint=OTHER_TORCH)
    far = candidate("2", place=Place(THERE))
    assert best((near, far), allowed) == Chosen("e2")


def test_a_uuid_names_a_device_and_a_name_only_where_there_is_none() -> None:
    """The engine's `cuda:0` under another CUDA_VISIBLE_DEVICES is the mover's `cuda:1`."""
    devices = (gpu("cuda:0", A), gpu("cuda:1", B))
    assert device_named(devices, "cuda:0", B) == devices[1]
    assert device_named(devices, "cuda:0", C) is None
    assert device_named(devices, "cuda:1") == devices[1]
    assert device_named(devices, "cpu") is None


def test_slots_are_counted_by_device() -> None:
    fleet = Fleet(node_lease_ms=1_000, engine_lease_ms=1_000)
    fleet.put_node(node_of("1", gpu("cuda:0", A), gpu("cuda:1", B, slots=3)), 0.0)
    fleet.put_node(node_of("2", gpu("cuda:0", C)), 0.0)
    fleet.put_engine(engine_on("1", "cuda:0", A), 0.0)
    fleet.put_engine(engine_on("3", "cuda:0", B), 0.0)
    fleet.put_engine(engine_on("2", "cuda:0", C, node="2"), 0.0)
    used = fleet.slots_used((session(), session(owner="e3")), (entry().move,))
    assert used == {("n1", "cuda:0"): 1, ("n1", "cuda:1"): 1, ("n2", "cuda:0"): 1}
    candidates = fleet.candidates((session(),), (), 0.1)
    assert [(one.engine_id, one.device, one.slots_free, one.place) for one in candidates] == [
        ("e1", "cuda:0", 1, Place(HERE, A)),
        ("e2", "cuda:0", 2, Place(HERE, C)),
        ("e3", "cuda:1", 3, Place(HERE, B)),
    ]
    assert fleet.place("e3") == Place(HERE, B)


def test_an_engine_whose_node_lost_its_device_is_no_candidate() -> None:
    fleet = Fleet(node_lease_ms=1_000, engine_lease_ms=1_000)
    fleet.put_node(node_of("1", gpu("cuda:0", A)), 0.0)
    fleet.put_engine(engine_on("1", "cuda:0", A), 0.0)
    fleet.put_node(node_of("1", DeviceRecord("cpu", 1, 1 << 20)), 0.0)
    assert fleet.candidates((), (), 0.1) == ()
    with pytest.raises(NotFound) as caught:
        fleet.device("e1")
    assert caught.value.reason == "DEVICE_UNKNOWN"


def test_a_directory_that_knows_no_pcie_peers_is_read(tmp_path: Path) -> None:
    db = open_directory(str(tmp_path / "directory.sqlite"))
    db.row_factory = sqlite3.Row
    node_table.put_node(db, node_of("1", gpu("cuda:0", A, B, C)))
    (written,) = db.execute("SELECT devices FROM nodes").fetchone()
    (device,) = json.loads(written)
    del device["pcie_peers"]
    db.execute("UPDATE nodes SET devices = ?", (json.dumps([device]),))
    assert node_table.all_nodes(db) == [node_of("1", gpu("cuda:0", A, B))]
    db.close()


def test_the_directory_keeps_devices(tmp_path: Path) -> None:
    path = str(tmp_path / "directory.sqlite")
    nodes = [node_of("1", gpu("cuda:0", A, B, C), DeviceRecord("cpu", 4, 5))]
    engines = [engine_on("1", "cuda:0", A)]
    for _ in range(2):
        db = open_directory(path)
        db.row_factory = sqlite3.Row
        for one in nodes:
            node_table.put_node(db, one)
        for engine in engines:
            node_table.put_engine(db, engine)
        assert node_table.all_nodes(db) == nodes
        assert node_table.all_engines(db) == engines
        db.close()
        nodes = [node_of("1", gpu("cuda:1", B), host_id=THERE)]
        engines = [engine_on("1", "cuda:1", B)]


def test_devices_cross_the_wire_as_they_are() -> None:
    device = gpu("cuda:0", A, B, C)
    message = placement_pb2.RegisterNodeRequest(
        protocol_version=PROTOCOL_VERSION,
        node_id="n1",
        mover_address="127.0.0.1:1001",
        incarnation="j1",
        host_id=HERE,
        devices=[
            device_to_proto(device, slots_free=0),
            placement_pb2.Device(name="cpu", slots_total=1, slot_bytes=1),
        ],
    )
    assert node_from_proto(message) == node_of("1", device, DeviceRecord("cpu", 1, 1))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "devices.name"),
        ({"slots_total": 0}, "devices.slots_total"),
        ({"slot_bytes": 0}, "devices.slot_bytes"),
        ({"numa_node": 5_000}, "devices.numa_node"),
        ({"nvlink_peers": ("",)}, "devices.nvlink_peers"),
        ({"nvlink_peers": ("p",) * 2_000}, "devices.nvlink_peers"),
        ({"pcie_peers": ("",)}, "devices.pcie_peers"),
        ({"pcie_peers": ("p",) * 2_000}, "devices.pcie_peers"),
        ({"uuid": "u" * 200}, "devices.uuid"),
    ],
)
def test_a_device_out_of_range_names_the_field(changes: dict[str, object], field: str) -> None:
    values: dict[str, object] = {"name": "cuda:0", "slots_total": 1, "slot_bytes": 1}
    with pytest.raises(InvalidInput) as caught:
        DeviceRecord(**values | changes)  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    "devices",
    [(), (gpu("cuda:0", A), gpu("cuda:0", B)), (gpu("cuda:0", A), gpu("cuda:1", A))],
)
def test_a_node_has_devices_each_once(devices: tuple[DeviceRecord, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        node_of("1", *devices)
    assert caught.value.field == "devices"
