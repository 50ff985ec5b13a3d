"""Top: frames without a terminal, and the loop around them without a cluster."""

from __future__ import annotations

import asyncio
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tests.unit.cli.test_commands import invoke, stage
from tests.unit.sdk.fakes import Stage
from worldline.cli.top import follow
from worldline.cli.top_frame import DROP, brief_ms, frame, row_shares
from worldline.cli.top_snapshot import Snapshot, take
from worldline.errors import Unavailable
from worldline.sdk import Client
from worldline.sdk.move_record import move_from_proto
from worldline.sdk.records import node_from_proto, session_from_proto
from worldline.v1 import contract_pb2, engine_pb2, move_pb2, placement_pb2

__all__ = ["stage"]

SESSION, MOVE = "session-0123456789abcdef01234567", "move-0123456789abcdef01234567"
ADDRESS = "127.0.0.1:7400"
ROOT = Path(__file__).parents[3]


COUNTS = placement_pb2.BlockCounts(
    blocks=900, degraded_blocks=31, releases_skipped=7, missed_periods=5
)


def node(name: str, **facts: Any) -> Any:
    message = placement_pb2.Node(
        node_id=name,
        alive=facts.pop("alive", True),
        drain=facts.pop("drain", ""),
        engines=[
            placement_pb2.Engine(
                engine_id=f"{name}-{which}", device="cpu", alive=True, block_counts=COUNTS
            )
            for which in facts.pop("engines", ("cpu",))
        ],
        devices=[
            placement_pb2.Device(
                name="cpu",
                slots_total=4,
                slots_free=1,
                slot_bytes=64_000_000,
                slots_live=2,
                slots_shadow=1,
                slots_quarantined=3,
            )
        ],
    )
    return node_from_proto(message)


def session(number: int = 0, state: str = "live") -> Any:
    return session_from_proto(
        placement_pb2.Session(
            session_id=f"{SESSION[:-2]}{number:02d}",
            epoch=3,
            engine_id="node-1-cpu",
            contract=contract_pb2.Contract(
                service_class=contract_pb2.SERVICE_CLASS_C1_INTERACTIVE,
                horizon_ms=100,
                quality_floor_steps=1,
                determinism_tier=contract_pb2.DETERMINISM_TIER_T0_BITWISE,
                decode_tier=contract_pb2.DECODE_TIER_FULL,
            ),
            world=engine_pb2.WorldSpec(preset="tiny"),
            state=state,
            state_bytes=1_430_000,
            block_index=1234,
            block_counts=COUNTS,
        )
    )


def moving(step: str = "push", sent_bytes: int = 400_000_000) -> Any:
    record = move_pb2.MoveRecord(
        move_id=MOVE,
        session_id=SESSION,
        source_engine_id="node-1-cpu",
        target_engine_id="node-2-cpu",
        phase=move_pb2.MOVE_PHASE_FROZEN,
    )
    progress = placement_pb2.MoveProgress(
        move_id=MOVE,
        phase=move_pb2.MOVE_PHASE_FROZEN,
        sent_bytes=sent_bytes,
        total_bytes=1_600_000_000,
        step=step,
        step_ms=200.0,
        elapsed_ms=450.0,
    )
    return move_from_proto(record, progress)


def rejected() -> Any:
    verdict = move_pb2.Verdict(
        reason=move_pb2.REJECT_REASON_DEVICE_OVERCOMMITTED,
        explanation="too much",
        numbers={"l_star_ms": 900.0, "horizon_ms": 400.0},
        retry_after_ms=270,
    )
    return move_from_proto(
        move_pb2.MoveRecord(
            move_id=MOVE,
            session_id=SESSION,
            phase=move_pb2.MOVE_PHASE_REJECTED,
            verdict=verdict,
            age_ms=61_000,
        )
    )


FULL = Snapshot(
    ADDRESS,
    taken_s=10.0,
    nodes=(node("node-1"), node("node-2", alive=False, drain="draining")),
    sessions=tuple(session(number) for number in range(8)),
    moves=(moving(),),
    rejects=(rejected(),),
)


def shown(
    snapshot: Snapshot, now_s: float = 10.0, width: int = 160, height: int | None = None
) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(frame(now_s, snapshot, width, height))
    return capture.get().splitlines()


def test_a_move_has_its_bytes_its_rate_and_what_is_left() -> None:
    (row,) = [line for line in shown(FULL) if line.startswith(MOVE)]
    assert row.split() == [
        MOVE, SESSION, "node-1-cpu", "node-2-cpu", "push",
        "200", "ms", "400.00", "MB", "25", "2.00", "GB/s", "600", "ms",
    ]  # fmt: skip


def test_time_goes_on_between_two_answers() -> None:
    (row,) = [line for line in shown(FULL, now_s=10.5) if line.startswith(MOVE)]
    assert "700 ms" in row
    assert "100 ms" in row
    (reject,) = [line for line in shown(FULL, now_s=70.0) if "DEVICE_OVERCOMMITTED" in line]
    assert reject.strip().startswith("2 min")


def test_a_move_that_waits_says_for_how_long_and_no_rate() -> None:
    snapshot = replace(FULL, moves=(moving("arm", 0),))
    (row,) = [line for line in shown(snapshot) if line.startswith(MOVE)]
    assert "arm" in row
    assert "GB/s" not in row
    giving_back = replace(FULL, moves=(moving(""),))
    assert any("frozen" in line for line in shown(giving_back) if line.startswith(MOVE))


def test_everything_of_nodes_sessions_and_rejects_is_there() -> None:
    text = "\n".join(shown(FULL))
    assert "1 of 2 nodes alive; 8 sessions (8 live); 1 move under way" in text
    assert re.search(r"node-1 +alive +cpu +1/4 +2 +1 +3 +31 +7 +5 +64.00 MB node-1-cpu", text)
    assert re.search(r"node-2 +silent, draining", text)
    assert re.search(rf"{SESSION[:-2]}07 node-1-cpu live +tiny +1234 +31 +7 +5 +3 1.43 MB", text)
    assert re.search(r"DEVICE_OVERCOMMITTED +270 ms horizon_ms 400, l_star_ms 900", text)


def test_a_node_counts_the_blocks_of_all_its_engines() -> None:
    text = "\n".join(shown(replace(FULL, nodes=(node("node-1", engines=("a", "b")),))))
    assert re.search(r"node-1 +alive .* +62 +14 +10 +64.00 MB node-1-a, node-1-b", text)


def test_a_session_that_nobody_has_told_of_has_no_counts() -> None:
    untold = replace(session(), block_counts=None)
    text = "\n".join(shown(replace(FULL, sessions=(untold,))))
    assert re.search(r"live +tiny +1234 +- +- +- +3 1.43 MB", text)


def test_the_page_says_what_goes_first() -> None:
    page = (ROOT / "docs" / "watch.md").read_text()
    for part, order in DROP.items():
        assert f"| {part} | {', '.join(order)} |" in page


@pytest.mark.parametrize(
    ("name", "said"),
    [("top.svg", ("nodes", "moving", "push")), ("move-watch.svg", ("push", "committed", "equal"))],
)
def test_the_recorded_screens_can_be_read(name: str, said: tuple[str, ...]) -> None:
    path = ROOT / "docs" / "images" / name
    assert path.stat().st_size < 100_000
    text = "".join(ElementTree.fromstring(path.read_text()).itertext())  # noqa: S314 - ours
    assert all(word in text for word in said)


def test_what_goes_first_goes_first() -> None:
    text = "\n".join(shown(FULL, width=60))
    for gone in ("MOVE", "FROM", "RATE", "SLOT", "ENGINES", "EPOCH", "PRESET", "NUMBERS", "AGO"):
        assert not re.search(rf"^{gone}\b|\b{gone}\b *$|  {gone} ", text, re.MULTILINE), gone
    for kept in ("STEP", "SENT", "LEFT", "SHADOW", "OWNER", "STATE", "BLOCK", "REASON"):
        assert kept in text
    assert SESSION in text
    assert all(set(order) for order in DROP.values())


@given(
    width=st.integers(60, 220),
    height=st.none() | st.integers(16, 80),
    sessions=st.integers(0, 40),
    now_s=st.floats(10, 1e6),
    trouble=st.sampled_from(["", "UNAVAILABLE: " + "nobody answers " * 12]),
)
def test_a_frame_fits(
    width: int, height: int | None, sessions: int, now_s: float, trouble: str
) -> None:
    everybody = tuple(session(number) for number in range(sessions))
    snapshot = replace(FULL, sessions=everybody, trouble=trouble)
    lines = shown(snapshot, now_s, width, height)
    assert all(cell_len(line.rstrip()) <= width for line in lines)
    if height is not None:
        assert len(lines) <= height
    rows = sum(
        (line.startswith(SESSION[:-2]) and "tiny" in line) or " live " in line for line in lines
    )
    if height is None:
        assert sum(line.startswith(SESSION[:-2]) for line in lines) >= sessions
        assert rows >= 0


def test_rows_that_do_not_fit_are_counted() -> None:
    lines = shown(replace(FULL, sessions=tuple(session(n) for n in range(40))), height=30)
    assert len(lines) <= 30
    (more,) = [line for line in lines if line.startswith("and ")]
    count = int(re.findall(r"\d+", more)[0])
    assert more.strip() == f"and {count} more sessions"
    assert sum(line.startswith(SESSION[:-2]) for line in lines) == 40 - count + 1 - 1


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=5), spare=st.integers(0, 100))
def test_shares_are_no_more_than_there_is(counts: list[int], spare: int) -> None:
    shares = row_shares(counts, spare)
    assert all(0 <= share <= count for share, count in zip(shares, counts, strict=True))
    assert sum(shares) == min(sum(counts), spare)
    assert row_shares(counts, None) == counts


def test_a_placement_that_is_away_is_said_with_what_it_said_last() -> None:
    away = FULL.after("UNAVAILABLE: no placement answers")
    text = "\n".join(shown(away, now_s=14.0))
    assert "placement does not answer; below is what it said 4.0 s ago" in text
    assert "UNAVAILABLE: no placement answers" in text
    assert SESSION in text
    never = Snapshot(ADDRESS).after("UNAVAILABLE: nobody")
    assert "placement has not answered yet" in "\n".join(shown(never))


@pytest.mark.parametrize(
    ("duration_ms", "said"),
    [(0, "0 ms"), (999, "999 ms"), (1_000, "1.0 s"), (90_000, "2 min"), (7_200_000, "2 h")],
)
def test_brief_durations(duration_ms: float, said: str) -> None:
    assert brief_ms(duration_ms) == said


def test_once_shows_one_frame_and_so_does_a_pipe(stage: Stage) -> None:
    for arguments in (("top", "--once"), ("top",)):
        result = invoke(*arguments, stage=stage)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.count("worldline at ") == 1
        assert "session-1" in result.stdout
        assert "node-0" in result.stdout


def test_once_as_json_is_one_object_on_one_line(stage: Stage) -> None:
    no = rejected()
    stage.placement.moves.append(
        move_pb2.MoveRecord(
            move_id="move-2",
            phase=move_pb2.MOVE_PHASE_REJECTED,
            verdict=move_pb2.Verdict(reason=move_pb2.REJECT_REASON_TARGET_FULL),
        )
    )
    result = invoke("top", "--once", "--json", stage=stage)
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert found["trouble"] is None
    assert [one["session_id"] for one in found["sessions"]] == ["session-1"]
    assert {"slots_live", "slots_shadow"} <= set(found["nodes"][0]["devices"][0])
    assert [one["move_id"] for one in found["rejects"]] == ["move-2"]
    as_json = replace(FULL, rejects=(no,)).jsonable(10.0)
    assert as_json["moves"][0]["progress"]["rate_bytes_per_s"] == 2e9
    assert as_json["rejects"][0]["verdict"]["numbers"]["l_star_ms"] == 900.0


@pytest.mark.parametrize("interval", ["soon", "1ms"])
def test_a_bad_interval_is_status_2(interval: str) -> None:
    result = invoke("top", "--interval", interval)
    assert result.exit_code == 2
    assert "[--interval]" in result.stderr


async def test_a_placement_that_goes_away_comes_back() -> None:
    """Each refresh is shown, whether it was answered or not; `stop` ends it at once."""
    built = await Stage.build()
    shows: list[Snapshot] = []
    stop = asyncio.Event()

    def show(snapshot: Snapshot) -> None:
        shows.append(snapshot)
        if len(shows) == 1:
            built.placement.script["ListNodes"] = [Unavailable("restarting")] * 50
        elif snapshot.trouble:
            built.placement.script["ListNodes"].clear()
        elif len(shows) > 2:
            stop.set()

    try:
        async with asyncio.timeout(60), Client(built.address, timeout_s=0.3) as client:
            await follow(client, 0.01, show, stop)
    finally:
        await built.close()
    assert not shows[0].trouble
    assert any("restarting" in one.trouble and one.sessions for one in shows)
    assert not shows[-1].trouble


async def test_stop_ends_a_question_that_nobody_answers() -> None:
    stop = asyncio.Event()

    class Deaf:
        placement_address = ADDRESS

        async def nodes(self) -> Any:
            stop.set()
            await asyncio.get_running_loop().create_future()

    async with asyncio.timeout(60):
        await follow(Deaf(), 3_600.0, pytest.fail, stop)  # type: ignore[arg-type]


async def test_nodes_are_in_the_order_of_their_numbers() -> None:
    class Few:
        placement_address = ADDRESS

        async def nodes(self) -> Any:
            return tuple(node(f"node-{number}") for number in (10, 2, 1))

        async def sessions(self) -> Any:
            return ()

        async def moves(self, **_limits: Any) -> Any:
            return ()

    taken = await take(Few(), 1.0)  # type: ignore[arg-type]
    assert [one.node_id for one in taken.nodes] == ["node-1", "node-2", "node-10"]
