"""The comparison of configurations: first block and leaf, and whether a fact tells them apart."""

from __future__ import annotations

from typing import Any

import pytest

from bench import determinism
from bench.determinism import CONFIGURATIONS, Compared, compared, psnr_db


def process(facts: dict[str, str], *leaves: tuple[int, int], pixels: bytes = b"\x00\x10") -> Any:
    """What a process of two leaves says: their digests behind each block."""
    return {
        "paths": ["k", "v"],
        "blocks": [{"whole": sum(pair), "leaves": pair, "frames": 1} for pair in leaves],
        "pixels": pixels.hex(),
        "facts": facts,
    }


def test_the_first_block_and_leaf_that_differ_are_found() -> None:
    one = process({"threads": "1"}, (1, 2), (3, 4), (5, 6))
    other = process({"threads": "2"}, (1, 2), (3, 9), (8, 9), pixels=b"\x00\x20")
    found = compared("2 threads", one, other)
    assert found == Compared("2 threads", ("threads",), 1, 2, 1, "v", psnr_db(b"\0\x10", b"\0\x20"))
    assert compared("again", one, one) == Compared("again", (), None, 2, 0, "", None)


def test_the_noise_is_that_of_eight_bit_pixels() -> None:
    assert psnr_db(b"\x00\x00", b"\xff\xff") == 0.0
    assert psnr_db(b"", b"") is None


@pytest.mark.parametrize(("facts", "status"), [({"threads": "2"}, 0), ({"threads": "1"}, 1)])
def test_bits_that_differ_under_equal_facts_fail_the_run(
    facts: dict[str, str],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = {"torch": "2", "instruction_set": "NONE", "threads": "1"}
    first = process(known, (1, 2))
    said = iter([first, process(known | facts, (1, 3)), *[first] * len(CONFIGURATIONS)])
    monkeypatch.setattr(determinism, "run_child", lambda *_: next(said))
    monkeypatch.setattr("sys.argv", ["determinism.py"])
    assert determinism.main() == status
    assert ("fingerprints do not" in capsys.readouterr().err) == bool(status)
