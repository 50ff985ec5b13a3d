"""Scenarios of whole moves through the machine: scripts with recorded output.

A line that starts with `>` is an event, the line after it is what the machine answered. After a
deliberate change of the machine: `WORLDLINE_REWRITE=1 pytest tests/scenarios`, then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.placement import events as ev
from services.placement.limits import Limits
from services.placement.move import Move, Transition, expired, step
from services.placement.phases import Goal, Outcome, Step
from services.placement.values import Failure, Party, PushFigures, SlotName, Ticket
from worldline.verdict import RejectReason, Verdict

FOLDER = Path(__file__).parent / "moves"
LIMITS = Limits()
TICKET = Ticket("t", valid_for_ms=1_000, lease_ms=500, horizon_ms=8_000.0, move_ms=3_000.0)
FIGURES = PushFigures(100, 1, 100, 4, 1.0, 0.1, 1)


def new_move(goal: Goal) -> Move:
    return Move(
        move_id="m",
        session_id="s",
        source=Party("e1", "i1", "n1", "j1"),
        target=Party("e2", "i2", "n2", "j2"),
        source_epoch=3,
        goal=goal,
        deadline_s=LIMITS.requested_s,
    )


def party(rest: list[str]) -> Party:
    """Of the node that is named, the second where none is."""
    number = rest[-1][1:] if rest else "2"
    return Party(f"e{number}", f"i{number}", f"n{number}", f"j{number}")


def parse(words: list[str]) -> ev.Event:
    """An event from its words; `#2` picks the attempt."""
    attempt = int(words[-1][1:]) if words[-1].startswith("#") else 1
    words = [word for word in words if not word.startswith("#")]
    name, rest = words[0], words[1:]
    reason = rest[-1] if rest else ""
    failure = Failure("TransferFailed", reason, f"it was {reason}")
    simple: dict[str, ev.Event] = {
        "begin": ev.Begin(),
        "rollback": ev.RollbackAsked(Failure("Conflict", "CLIENT_ROLLBACK", "given up")),
        "admitted": ev.Admitted(
            attempt,
            TICKET,
            Verdict.admit("yes"),
            party(rest),
            tier_dropped=False,
        ),
        "probed": ev.Probed(attempt),
        "reserved": ev.Reserved(attempt, "r", SlotName("n2", 0, 1)),
        "admitted_warm": ev.Admitted(
            attempt, TICKET, Verdict.admit("yes"), party(rest), tier_dropped=False, warm=True
        ),
        "warmed": ev.Warmed(attempt),
        "armed": ev.Armed(attempt),
        "frozen": ev.Frozen(attempt, SlotName("n1", 0, 1), 7),
        "pushed": ev.Pushed(attempt, 1, 1, FIGURES),
        "equal": ev.VerifiedEqual(attempt, 1),
        "unequal": ev.VerifiedUnequal(
            attempt, Failure("IntegrityError", "DIGEST_MISMATCH", "differs", "kv[0].k", 5)
        ),
        "attached": ev.Attached(attempt),
        "recorded": ev.CommitRecorded(attempt),
        "lost": ev.CommitLost(attempt, Failure("Fenced", "COMMIT_LOST", "another was first")),
    }
    if name in simple:
        return simple[name]
    if name == "asked":
        return ev.Asked(Goal[rest[0]])
    if name == "refused":
        verdict = Verdict.reject(RejectReason[rest[1]], "no")
        return ev.Refused(attempt, Step[rest[0]], verdict, party(rest[2:]) if rest[2:] else None)
    if name == "failed":
        return ev.Failed(attempt, Step[rest[0]], failure)
    if name == "settled":
        return ev.Settled(attempt, Step[rest[0]], Outcome[rest[1]] if rest[1:] else Outcome.DONE)
    raise ValueError(f"no such event: {name}")


def render(transition: Transition) -> str:
    verbs = {ev.Run: "run", ev.Cancel: "cancel"}
    actions = ", ".join(
        f"{verbs[type(action)]} {action.step.name}#{action.attempt}"
        for action in transition.actions
    )
    return f"{transition.move.phase.name}: {transition.reason}" + (
        f" [{actions}]" if actions else ""
    )


def replay(script: str) -> str:
    """The script with what the machine answers today."""
    out: list[str] = []
    move: Move | None = None
    now = 0.0
    for line in script.splitlines():
        if line.startswith("move "):
            move = new_move(Goal[line.split("=")[1]])
            out.append(line)
        elif line.startswith("> "):
            assert move is not None, "a script begins with `move goal=...`"
            words = line[2:].split()
            out.append(line)
            if words[0] == "wait":
                now += float(words[1])
                if not expired(move, now):
                    out.append(f"{move.phase.name}: nothing is due")
                    continue
                transition = step(move, ev.DeadlinePassed(), now, LIMITS)
            else:
                transition = step(move, parse(words), now, LIMITS)
            move = transition.move
            out.append(render(transition))
        elif line.startswith("#") or not line:
            out.append(line)
    return "\n".join(out) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    script = path.read_text()
    replayed = replay(script)
    if os.environ.get("WORLDLINE_REWRITE"):
        path.write_text(replayed)
    assert replayed == script


def test_scenarios_are_there() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 10
