"""Buffer: parts of device memory are addresses, and keep their owner alive."""

from __future__ import annotations

import gc
import weakref

import pytest

from worldline.cuda.buffer import DeviceBuffer
from worldline.errors import InvalidInput


class Owner:
    pass


def test_a_part_is_an_address_in_the_whole() -> None:
    part = DeviceBuffer(1 << 40, 1000, 1, None).part(100, 800).part(50, 7)
    assert (part.address, part.nbytes, part.device_index, len(part)) == ((1 << 40) + 150, 7, 1, 7)
    assert part.__cuda_array_interface__ == {
        "version": 3,
        "shape": (7,),
        "typestr": "|u1",
        "data": ((1 << 40) + 150, False),
        "strides": None,
        "stream": None,
    }


def test_an_empty_part_has_no_address_for_others() -> None:
    part = DeviceBuffer(1 << 40, 10, 0, None).part(10, 0)
    assert part.__cuda_array_interface__["data"] == (0, False)


@pytest.mark.parametrize(("offset", "size"), [(-1, 2), (0, 11), (10, 1), (11, 0), (4, -1)])
def test_a_part_lies_within(offset: int, size: int) -> None:
    with pytest.raises(InvalidInput):
        DeviceBuffer(1 << 40, 10, 0, None).part(offset, size)


def test_a_part_keeps_the_owner_alive() -> None:
    owner = Owner()
    gone = weakref.ref(owner)
    part = DeviceBuffer(1 << 40, 10, 0, owner).part(1, 2)
    del owner
    gc.collect()
    assert gone() is not None
    del part
    gc.collect()
    assert gone() is None
