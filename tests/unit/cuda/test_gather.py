"""Gather: which leaves go in the one launch, and the kernel's source itself on the host."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.unit.cuda.host import run
from worldline.cuda.gather import LEAF_DTYPE, UNIT_BYTES, leaf_table, lies_as_in_slot, units_of
from worldline.state.tree import plan


def leaf_of(tensor: torch.Tensor) -> tuple[object, torch.Tensor]:
    return plan([tensor]).tensors[0], tensor


@pytest.mark.parametrize(
    ("tensor", "flat"),
    [
        (torch.zeros(2, 3), True),
        (torch.zeros(()), True),
        (torch.zeros(0, 5), True),
        (torch.zeros(4, 6).t(), True),
        (torch.zeros(1, 6)[:, ::1], True),
        (torch.zeros(3, 1).expand(3, 7), True),
        (torch.zeros(4, 6)[:, :3], False),
        (torch.zeros(12)[::2], False),
        (torch.zeros(4, 6, 5).permute(2, 0, 1)[:, :, 1:3], False),
    ],
)
def test_only_leaves_that_lie_as_in_the_slot_are_copied_flat(
    tensor: torch.Tensor, flat: bool
) -> None:
    assert lies_as_in_slot(*leaf_of(tensor)) is flat  # type: ignore[arg-type]


def test_a_table_holds_each_leafs_span() -> None:
    tensors = [torch.zeros(5, dtype=torch.int16), torch.zeros(0), torch.zeros(3).expand(9, 3)]
    layout = plan(tensors)
    rows = leaf_table([(leaf, 7 * index) for index, leaf in enumerate(layout.tensors)])
    assert rows["address"].tolist() == [0, 7, 14]
    assert rows["size_bytes"].tolist() == [10, 0, 12]
    assert rows["offset_bytes"].tolist() == [leaf.offset_bytes for leaf in layout.tensors]
    assert leaf_table([]).shape == (0,)
    assert units_of(leaf_table([])).tolist() == [0]


def test_units_count_the_pieces() -> None:
    sizes = [0, 1, UNIT_BYTES, 0, UNIT_BYTES + 1, 0]
    rows = np.array([(0, 0, size) for size in sizes], LEAF_DTYPE)
    assert units_of(rows).tolist() == [0, 0, 1, 2, 2, 4, 4]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("scatter", [False, True])
def test_the_kernel_copies_exactly_the_leaves(seed: int, scatter: bool, tmp_path: Path) -> None:
    source = random.Random(seed)
    own, slot = bytearray(source.randbytes(400_000)), bytearray(source.randbytes(400_000))
    rows, own_at, slot_at = [], 0, 0
    for _ in range(source.randint(1, 9)):
        size = source.choice([0, 1, 2, 15, 16, 64, 1000, 4099, 66_000, 140_000])
        own_at += source.choice([0, 1, 2, 4, 8, 16, 33])
        slot_at += source.choice([0, 1, 2, 4, 8, 16, 33])
        if max(own_at, slot_at) + size > 400_000:
            break
        rows.append((own_at, slot_at, size))
        own_at, slot_at = own_at + size, slot_at + size
    source.shuffle(rows)
    table = np.array(rows, LEAF_DTYPE)
    for name, data in (("own", own), ("slot", slot)):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "leaves").write_bytes(table.tobytes())
    (tmp_path / "units").write_bytes(units_of(table).tobytes())
    run("gather", tmp_path, int(scatter), source.choice([0, 0, 1, 2, 4, 8, 100]))
    for own_start, slot_start, size in rows:
        if scatter:
            own[own_start : own_start + size] = slot[slot_start : slot_start + size]
        else:
            slot[slot_start : slot_start + size] = own[own_start : own_start + size]
    assert (tmp_path / "own.out").read_bytes() == own
    assert (tmp_path / "slot.out").read_bytes() == slot
