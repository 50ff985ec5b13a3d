"""Checks of a fresh session: its state has a plan, and every byte of it is written."""

from __future__ import annotations

from services.engine.check.case import Case
from services.engine.check.finding import Found, failed, held, listed, warned
from services.engine.check.private import POISON, PrivateWorld
from services.engine.world import InParts
from worldline.state.layout import Layout
from worldline.state.manifest import Digests
from worldline.state.tree import plan


def state_spec(case: Case) -> Found:
    """`state_spec` can be laid out, and says the same whenever it is asked."""
    layout = case.subject.layout
    again = plan(case.subject.model.state_spec())
    if again.topology_hash != layout.topology_hash:
        return failed(
            "state_spec() is another tree when asked again",
            "make it a function of the configuration alone",
        )
    if not layout.tensors:
        return failed("it has no tensor", "put everything that decides the next frame into it")
    return held(
        f"{len(layout.tensors)} tensors and {len(layout.scalars)} scalars, "
        f"{layout.extent_bytes:,} bytes"
    )


def initialise(case: Case) -> Found:
    """Two slots that held other bytes hold the same after `initialise` with one seed."""
    layout = case.subject.layout
    seed = case.wish.seed
    one, other = (_initialised(case, seed, fill) for fill in (POISON, POISON ^ 0xFF))
    left = _differing(layout, one, other)
    if left:
        return failed(
            f"what the slot held before shows in {listed(left)}",
            "write every byte of every leaf in initialise, zeros too",
        )
    if one.whole != other.whole:
        return failed("scalars differ between two fresh sessions", "set them in initialise")
    if _initialised(case, seed + 1, POISON).whole == one.whole:
        return warned(
            "another seed gives the same state", "draw a session's first state from its seed"
        )
    if isinstance(case.subject.model, InParts) and _at_once(case, seed).whole != one.whole:
        return failed(
            "initialise and initialising write different states",
            "let one of them be made from the other: an engine takes initialising",
        )
    return held(f"every byte, whatever the slot held; seed {seed} decides")


def _initialised(case: Case, seed: int, fill: int) -> Digests:
    with PrivateWorld.opened(case.subject, seed, fill=fill) as world:
        return world.memory.digests()


def _at_once(case: Case, seed: int) -> Digests:
    with PrivateWorld.opened(case.subject, seed) as world:
        case.subject.model.initialise(world.state, seed)
        return world.memory.digests()


def _differing(layout: Layout, one: Digests, other: Digests) -> list[str]:
    return [
        leaf.path
        for leaf, here, there in zip(layout.tensors, one.leaves, other.leaves, strict=True)
        if here != there
    ]
