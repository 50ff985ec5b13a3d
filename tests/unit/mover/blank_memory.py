"""What every kind of slot memory has to say of its zeros: one suite, run over each of them.

A subclass gives `memory`, a slot of `SLOT_BYTES`, and `bytes_of`.
"""

from __future__ import annotations

import numpy as np
import pytest

from services.mover.blanks import Blanks, find_blanks, write_blanks
from services.mover.memory.base import SlotMemory
from worldline.state.digest import GRANULE_BYTES, crc64

SLOT_BYTES = 8 * GRANULE_BYTES
#: Four granules, of which the last is short and ends within a word.
EXTENT_BYTES = 3 * GRANULE_BYTES + 77
ALL = Blanks(((0, 4),))
#: CRC-64/NVME's polynomial as nine bytes of a message: whoever adds them anywhere to bytes that
#: are digested changes no digest.
UNSEEN_BY_DIGESTS = (1 | 0x9A6C9329AC4BC9B5 << 1).to_bytes(9, "little")


class BlankMemorySuite:
    """Looking for zeros, and writing them."""

    def bytes_of(self, memory: SlotMemory, size_bytes: int) -> bytes:
        """What the slot holds, from its start."""
        raise NotImplementedError

    def put(self, memory: SlotMemory, at: int, data: bytes) -> None:
        memory.write(at, memoryview(data))

    def test_a_fresh_slot_is_all_zeros(self, memory: SlotMemory) -> None:
        memory.prepare(EXTENT_BYTES, zero=True)
        assert find_blanks(memory, EXTENT_BYTES) == ALL
        assert find_blanks(memory, GRANULE_BYTES) == Blanks(((0, 1),))
        assert find_blanks(memory, 1) == Blanks(((0, 1),))
        assert find_blanks(memory, 0) == Blanks()

    @pytest.mark.parametrize(
        ("at", "left"),
        [
            (0, ((1, 3),)),
            (15, ((1, 3),)),
            (63, ((1, 3),)),
            (64, ((1, 3),)),
            (GRANULE_BYTES - 1, ((1, 3),)),
            (GRANULE_BYTES, ((0, 1), (2, 2))),
            (GRANULE_BYTES + 100_003, ((0, 1), (2, 2))),
            (3 * GRANULE_BYTES, ((0, 3),)),
            (3 * GRANULE_BYTES + 63, ((0, 3),)),
            (EXTENT_BYTES - 13, ((0, 3),)),
            (EXTENT_BYTES - 1, ((0, 3),)),
            (EXTENT_BYTES, ((0, 4),)),  # beyond the extent nobody looks
        ],
    )
    def test_one_bit_anywhere_makes_a_granule_written(
        self, memory: SlotMemory, at: int, left: tuple[tuple[int, int], ...]
    ) -> None:
        memory.prepare(SLOT_BYTES, zero=True)
        for bit in (0, 7):
            self.put(memory, at, bytes([1 << bit]))
            assert find_blanks(memory, EXTENT_BYTES) == Blanks(left)
        self.put(memory, at, b"\0")
        assert find_blanks(memory, EXTENT_BYTES) == ALL

    def test_runs_end_where_something_is_written(self, memory: SlotMemory) -> None:
        memory.prepare(SLOT_BYTES, zero=True)
        for granule in (1, 4):
            self.put(memory, granule * GRANULE_BYTES + 5, b"\x10")
        assert find_blanks(memory, SLOT_BYTES).runs == ((0, 1), (2, 2), (5, 3))

    def test_bytes_with_the_digest_of_zeros_are_no_zeros(self, memory: SlotMemory) -> None:
        data = bytearray(GRANULE_BYTES)
        data[777:786] = UNSEEN_BY_DIGESTS
        assert crc64(data) == crc64(bytes(GRANULE_BYTES))
        memory.prepare(EXTENT_BYTES, zero=True)
        self.put(memory, GRANULE_BYTES, bytes(data))
        assert find_blanks(memory, EXTENT_BYTES).runs == ((0, 1), (2, 2))

    def test_only_what_is_asked_for_is_looked_at(self, memory: SlotMemory) -> None:
        memory.prepare(EXTENT_BYTES, zero=True)
        self.put(memory, 2 * GRANULE_BYTES, b"\x01")
        for among, found in (
            ((True, False, True, True), [0, 3]),
            ((False, True, True, False), [1]),
            ((False, False, False, False), []),
            ((True, True, True, True), [0, 1, 3]),
        ):
            asked = np.array(among)
            assert np.flatnonzero(memory.zero_granules(EXTENT_BYTES, asked)).tolist() == found
            assert asked.tolist() == list(among)
        assert np.flatnonzero(memory.zero_granules(EXTENT_BYTES)).tolist() == [0, 1, 3]

    def test_zeros_are_written_there_and_nowhere_else(self, memory: SlotMemory) -> None:
        for blanks, wanted in (
            (Blanks(), []),
            (
                Blanks(((1, 1), (3, 1))),
                [*range(GRANULE_BYTES, 2 * GRANULE_BYTES), *range(3 * GRANULE_BYTES, EXTENT_BYTES)],
            ),
            (ALL, [*range(EXTENT_BYTES)]),
        ):
            self.put(memory, 0, b"\xa5" * SLOT_BYTES)
            write_blanks(memory, blanks, EXTENT_BYTES)
            found = np.frombuffer(self.bytes_of(memory, SLOT_BYTES), np.uint8)
            assert np.array_equal(np.flatnonzero(found == 0), np.array(wanted, np.int64))

    def test_what_was_cleared_is_found(self, memory: SlotMemory) -> None:
        self.put(memory, 0, b"\xa5" * SLOT_BYTES)
        assert find_blanks(memory, EXTENT_BYTES) == Blanks()
        write_blanks(memory, Blanks(((0, 1), (2, 2))), EXTENT_BYTES)
        assert find_blanks(memory, EXTENT_BYTES) == Blanks(((0, 1), (2, 2)))
        assert find_blanks(memory, SLOT_BYTES) == Blanks(((0, 1), (2, 1)))
