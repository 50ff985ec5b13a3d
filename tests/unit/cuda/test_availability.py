"""Availability: without a device everything imports, says why, and raises one typed error."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections.abc import Callable

import pytest

import worldline.cuda
from worldline.cuda.availability import require, unavailable_reason
from worldline.cuda.devices import devices
from worldline.cuda.digest import CudaDigester
from worldline.cuda.memory import DeviceMemory, ImportedMemory
from worldline.cuda.pinned import PinnedMemory
from worldline.cuda.stream import Stream
from worldline.errors import InvalidInput, Unavailable
from worldline.state.layout import flat_layout

MODULES = [f"worldline.cuda.{item.name}" for item in pkgutil.iter_modules(worldline.cuda.__path__)]


def test_no_module_imports_a_cuda_package() -> None:
    code = (
        f"import importlib, sys\nfor name in {MODULES}: importlib.import_module(name)\n"
        "print([name for name in sys.modules if name == 'pynvml' or name.split('.')[0] == 'cuda'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert len(MODULES) > 8
    assert done.stdout.strip() == "[]"


without_a_device = pytest.mark.skipif(
    unavailable_reason() is None, reason="there is a device, so nothing is refused"
)


@without_a_device
def test_the_reason_is_a_sentence_and_there_are_no_devices() -> None:
    reason = unavailable_reason()
    assert reason
    assert devices() == ()
    with pytest.raises(Unavailable) as caught:
        require()
    assert (caught.value.message, caught.value.reason) == (reason, "CUDA_UNAVAILABLE")


@without_a_device
@pytest.mark.parametrize(
    "make",
    [
        lambda: DeviceMemory(1, 0),
        lambda: ImportedMemory(bytes(64), 1, 0),
        lambda: PinnedMemory(1),
        lambda: Stream(0),
    ],
)
def test_whatever_needs_a_device_says_that_there_is_none(make: Callable[[], object]) -> None:
    with pytest.raises(Unavailable) as caught:
        make()
    assert caught.value.reason == "CUDA_UNAVAILABLE"


@pytest.mark.parametrize(
    "make",
    [
        lambda: DeviceMemory(0, 0),
        lambda: ImportedMemory(bytes(63), 1, 0),
        lambda: ImportedMemory(bytes(64), 0, 0),
        lambda: PinnedMemory(0),
        lambda: CudaDigester(flat_layout("probe", 8), 99),
        lambda: CudaDigester(flat_layout("probe", 8), 0, 0),
    ],
)
def test_bad_input_is_refused_before_a_device_is_asked(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        make()
