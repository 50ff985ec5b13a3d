"""GPUs that are missing, and buses that lost half of their lanes."""

from __future__ import annotations

from worldline.doctor.devicecheck import bus_rate_bytes_per_s, check_devices
from worldline.doctor.facts import MOVER, Gpu, ProcessFacts
from worldline.doctor.finding import Severity

WHOLE = Gpu("cuda:0", pcie_generation=1, pcie_generation_max=5, pcie_lanes=16, pcie_lanes_max=16)


def mover(*gpus: Gpu) -> ProcessFacts:
    return ProcessFacts(MOVER, "node-1", devices=("cpu", "cuda:0"), gpus=gpus)


def test_a_device_that_is_not_here() -> None:
    (found,) = check_devices(mover())
    assert (found.code, found.severity, found.field) == (
        "DEVICE_MISSING",
        Severity.ERROR,
        "cuda:0",
    )
    assert check_devices(mover(WHOLE)) == ()


def test_a_bus_with_fewer_lanes_than_it_has() -> None:
    narrow = Gpu("cuda:0", pcie_generation_max=5, pcie_lanes=8, pcie_lanes_max=16)
    (found,) = check_devices(mover(narrow))
    assert (found.code, found.severity) == ("BUS_NARROW", Severity.WARNING)
    assert "8 of 16" in found.what
    assert check_devices(mover(Gpu("cuda:0"))) == ()  # nobody knows


def test_an_idle_bus_is_not_taken_for_a_slow_one() -> None:
    assert bus_rate_bytes_per_s(WHOLE) == 16 * 3.938e9
    assert bus_rate_bytes_per_s(Gpu("cuda:0")) == 0.0
