"""Check of branching: each branch has noise of its own, and always the same."""

from __future__ import annotations

from services.engine.check.case import Case
from services.engine.check.finding import Found, failed, held
from services.engine.check.private import PrivateWorld, Seen
from services.engine.world import SplitsNoise

_REMEDY = "derive the branch's noise from the parent's leaf and the number, and from nothing else"


def split(case: Case) -> Found:
    """Branch numbers lead to different noise, the same number to the same."""
    model = case.subject.model
    if not isinstance(model, SplitsNoise):
        return held("no split: a branch keeps its parent's noise")
    parent = case.reference.after[0]
    one, again, other = (_branched(case, model, number) for number in (1, 1, 2))
    if one != again:
        return failed("branch 1 twice gives two states", _REMEDY)
    if one.state_digest == other.state_digest:
        return failed("branches 1 and 2 go on alike", _REMEDY)
    if one.state_digest == parent.state_digest:
        return failed("branch 1 goes on as its parent does", _REMEDY)
    return held("branches part from each other and from their parent, each always the same")


def _branched(case: Case, model: SplitsNoise, number: int) -> Seen:
    with PrivateWorld.restored(case.subject, case.reference.snapshot) as world:
        world.memory.changing()
        model.split(world.state, number)
        return world.play(1)[0]
