"""What `worldline play` prints of a block: how it was served, where anything was amiss."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from worldline.cli.play import _print_block
from worldline.sdk.block import Block, block_from_proto
from worldline.v1 import engine_pb2

PLAIN = block_from_proto(
    engine_pb2.Block(block_index=7, epoch=2, generate_ms=12.5, steps=3, steps_full=3)
)
WHY = "FLOOR_TOO_LATE: the floor takes up to 43.8 ms, 9.0 ms are left"
POOR = replace(PLAIN, steps=1, degraded_because=WHY, releases_skipped=2, late_ms=1.25)


def printed(block: Block, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> str:
    _print_block(block, as_json)
    return " ".join(capsys.readouterr().out.split())


def test_a_block_that_was_served_as_asked_says_nothing_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert printed(PLAIN, capsys) == "block 7 epoch 2 12.5 ms frames 0000000000000000"


def test_a_block_says_what_it_lacks_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    line = printed(POOR, capsys)
    assert line.endswith(f"(1 of 3 steps: {WHY}) (1.2 ms late) (skipped before it: 2)")


def test_json_says_it_of_every_block(capsys: pytest.CaptureFixture[str]) -> None:
    plain, poor = (json.loads(printed(one, capsys, as_json=True)) for one in (PLAIN, POOR))
    wanted = ("steps", "steps_full", "degraded_because", "releases_skipped", "late_ms")
    assert [plain[name] for name in wanted] == [3, 3, None, 0, 0.0]
    assert [poor[name] for name in wanted] == [1, 3, WHY, 2, 1.25]
