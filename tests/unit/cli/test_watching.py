"""Watching a move: what is known of it, what is said, for people and for machines."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from tests.unit.cli.test_commands import invoke, stage
from tests.unit.sdk.fakes import Stage
from worldline.cli.watching import Watch, Watched, lines, said_of
from worldline.sdk import MovePhase, Progress
from worldline.v1 import move_pb2, placement_pb2

__all__ = ["stage"]

TOTAL = 1_600_000_000


def at(
    step: str, step_ms: float, elapsed_ms: float, sent_bytes: int = 0, wait_max_ms: float = 0.0
) -> Progress:
    return Progress(
        MovePhase.ADMITTED,
        sent_bytes,
        TOTAL if step in ("push", "verify") else 0,
        move_id="move-1",
        step=step,
        step_ms=step_ms,
        elapsed_ms=elapsed_ms,
        wait_max_ms=wait_max_ms,
    )


STORY = [
    at("admit", 0, 0),
    at("arm", 2, 10, wait_max_ms=3_000),
    at("push", 0, 1_010),
    at("push", 250, 1_260, 400_000_000),
    at("verify", 0, 2_010, TOTAL),
]


def told(story: list[Progress]) -> Watched:
    watched = Watched()
    for number, progress in enumerate(story):
        watched = watched.heard(progress, float(number))
    return watched


def drawn(watched: Watched, now_s: float) -> str:
    console = Console(width=120, file=io.StringIO(), force_terminal=False)
    with console.capture() as capture:
        console.print(lines(watched, now_s))
    return capture.get()


def test_each_step_has_lasted_until_the_next_began() -> None:
    assert told(STORY).ended == (("admit", 8, ""), ("arm", 1_002, ""), ("push", 1_000, "1.60 GB"))


def test_the_same_step_heard_again_has_not_ended() -> None:
    assert told(STORY[:4]).ended == told(STORY[:3]).ended


def test_a_rest_between_steps_belongs_to_none() -> None:
    rests = [at("admit", 0, 0), at("", 0, 5), at("reserve", 0, 900), at("", 0, 950)]
    assert told(rests).ended == (("admit", 5, ""), ("reserve", 50, ""))


def test_the_push_says_bytes_rate_and_what_is_left() -> None:
    said = said_of(STORY[3], 0.0)
    assert " 25%  400.00 MB of 1.60 GB, 1.60 GB/s, 750 ms left" in said
    assert said.count("━") == 6
    assert "550 ms left" in said_of(STORY[3], 200.0)
    assert "0 ms left" in said_of(STORY[3], 2_000.0)
    assert "left" not in said_of(STORY[2], 0.0), "no bytes, no rate"


def test_the_wait_for_the_wire_says_how_long_it_may_last() -> None:
    assert said_of(STORY[1], 500.0) == "for the wire; it is waited for 2.5 s more at most"
    assert said_of(at("arm", 1, 1), 0.0) == ""


def test_what_is_drawn_goes_on_by_itself() -> None:
    watched = told(STORY[:4])
    assert "push  " in drawn(watched, 3.0)
    assert "250 ms" in drawn(watched, 3.0)
    assert "350 ms" in drawn(watched, 3.1)
    assert "asking placement" in drawn(Watched(), 0.0)


@pytest.mark.parametrize("terminal", [True, False])
def test_every_ended_step_is_printed_once(terminal: bool) -> None:
    screen = Console(width=100, file=io.StringIO(), force_terminal=terminal, color_system=None)
    with Watch(as_json=False, screen=screen) as watch:
        for progress in STORY:
            watch.show(progress)
    assert isinstance(screen.file, io.StringIO)
    said = screen.file.getvalue()
    assert "1.60 GB" in said
    if not terminal:
        assert [line.split()[0] for line in said.splitlines()] == ["admit", "arm", "push"]


def events() -> list[placement_pb2.MoveSessionResponse]:
    progress = placement_pb2.MoveProgress(
        phase=move_pb2.MOVE_PHASE_FROZEN,
        move_id="move-1",
        step="push",
        step_ms=250.0,
        elapsed_ms=900.0,
        sent_bytes=400,
        total_bytes=1_600,
    )
    record = move_pb2.MoveRecord(move_id="move-1", phase=move_pb2.MOVE_PHASE_DONE)
    return [
        placement_pb2.MoveSessionResponse(progress=progress),
        placement_pb2.MoveSessionResponse(move=record),
    ]


@pytest.mark.parametrize("command", [("move", "session-1", "--watch"), ("watch", "move-1")])
def test_as_json_progress_is_in_lines_and_the_record_is_last(
    stage: Stage, command: tuple[str, ...]
) -> None:
    stage.placement.move_events = events()
    result = invoke(*command, "--json", stage=stage)
    assert result.exit_code == 0, result.stderr
    progress, record = (json.loads(line) for line in result.stdout.splitlines())
    assert (progress["step"], progress["phase"]) == ("push", "FROZEN")
    assert (progress["rate_bytes_per_s"], progress["remaining_ms"]) == (1_600.0, 750.0)
    assert record["outcome"] == "committed"


@pytest.mark.parametrize("command", [("move", "session-1", "--watch"), ("watch", "move-1")])
def test_for_people_the_record_is_the_answer(stage: Stage, command: tuple[str, ...]) -> None:
    stage.placement.move_events = events()
    result = invoke(*command, stage=stage)
    assert result.exit_code == 0, result.stderr
    assert "move move-1: committed" in result.stdout
    assert "worldline trace move-1" in result.stdout


def test_a_watched_move_that_is_rejected_is_status_3(stage: Stage) -> None:
    stage.placement.move_events = events()[1:]
    stage.placement.move_events[0].move.phase = move_pb2.MOVE_PHASE_REJECTED
    assert invoke("watch", "move-1", stage=stage).exit_code == 3
