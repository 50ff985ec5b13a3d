"""Scenarios of whole suspends and resumes through the machine: scripts with recorded output.

A line that starts with `>` is an event, the line after it is what the machine answered. After a
deliberate change of the machine: `WORLDLINE_REWRITE=1 pytest tests/scenarios`, then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.placement import suspension as machine
from services.placement.phases import Outcome
from services.placement.suspension import Step, Suspension, Transition, expired, recovered, step
from services.placement.values import Failure, Party, SlotName
from worldline.park import ParkKind, SuspensionVerb

FOLDER = Path(__file__).parent / "suspensions"
RESTARTED = Failure("Unavailable", "PLACEMENT_RESTARTED", "restarted")


def new_suspension(verb: SuspensionVerb) -> Suspension:
    return Suspension(
        suspension_id="s-1",
        session_id="s",
        verb=verb,
        kind=ParkKind.MEMORY,
        park_id="p",
        party=Party("e1", "i1", "n1", "j1"),
        epoch=3,
    )


def parse(words: list[str]) -> machine.Event:
    name, rest = words[0], words[1:]
    if name == "begin":
        return machine.Begin()
    if name == "done":
        found = Step[rest[0]]
        slot = SlotName("n1", 0, 1) if found in (Step.FREEZE, Step.UNPARK) else None
        return machine.Done(found, slot=slot)
    if name == "recorded":
        return machine.Recorded()
    if name == "lost":
        return machine.RecordLost(Failure("Fenced", "RECORD_LOST", "another was first"))
    if name == "failed":
        return machine.Failed(Step[rest[0]], Failure("TransferFailed", rest[1], "it was"))
    if name == "settled":
        return machine.Settled(Step[rest[0]], Outcome[rest[1]] if rest[1:] else Outcome.DONE)
    if name == "give-up":
        return machine.GiveUp(Failure("Unavailable", "PLACEMENT_STOPPING", "stopping"))
    raise ValueError(f"no such event: {name}")


def render(transition: Transition) -> str:
    verbs = {machine.Run: "run", machine.Cancel: "cancel"}
    actions = ", ".join(f"{verbs[type(one)]} {one.step.name}" for one in transition.actions)
    lost = " LOST" if transition.suspension.lost else ""
    return f"{transition.suspension.phase.name}{lost}: {transition.reason}" + (
        f" [{actions}]" if actions else ""
    )


def replay(script: str) -> str:
    """The script with what the machine answers today."""
    out: list[str] = []
    one: Suspension | None = None
    now = 0.0
    for line in script.splitlines():
        if line in ("suspend", "resume"):
            one = new_suspension(SuspensionVerb[line.upper()])
            out.append(line)
        elif line.startswith("> "):
            assert one is not None, "a script begins with `suspend` or `resume`"
            out.append(line)
            words = line[2:].split()
            events: tuple[machine.Event, ...]
            if words[0] == "restart":
                one, events = recovered(one, RESTARTED)
            elif words[0] == "wait":
                now += float(words[1])
                events = (machine.DeadlinePassed(),) if expired(one, now) else ()
                if not events:
                    out.append(f"{one.phase.name}: nothing is due")
            else:
                events = (parse(words),)
            for event in events:
                transition = step(one, event, now)
                one = transition.suspension
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
