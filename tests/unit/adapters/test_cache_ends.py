"""The bench's measurement of a Hugging Face cache's ends."""

from __future__ import annotations

import pytest
import torch

from bench.contestant import Failed
from bench.gpu.cache_ends import INSTALL_MS, PACK_MS, CacheEnds


def test_it_packs_and_installs_and_looks_at_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = CacheEnds("cache-ends", "cpu", lambda: None)
    ends.prepare()
    seconds = ends.run()
    assert seconds * 1e3 == pytest.approx(ends.figures[PACK_MS] + ends.figures[INSTALL_MS])
    assert all(value > 0 for value in ends.figures.values())
    monkeypatch.setattr(ends._carrier, "to_slot", lambda slot: None)
    with pytest.raises(Failed):
        ends.run()
    ends.close()
    ends.close()


def test_it_has_the_bytes_of_the_real_one() -> None:
    ends = CacheEnds("cache-ends", "cpu", lambda: None)
    ends.prepare()
    assert ends._slot.numel() == 48 * 2 * 1_024 * 64 * torch.bfloat16.itemsize
    ends.close()
