"""Update rule: how a state is written, told from the writes of a trace (paper, section 3.3).

Which results transfer to an engine hangs on its update rule. A state that is rewritten has no clean
prefix to ship ahead; one that is appended to, or written once and then read, has. The rule is read
off the *rewritten fraction* of each step and nothing else (see `writes`); no model is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from worldline.state.writes import Writes

#: A step that rewrote at least this much of what had been written rewrites the window. The paper's
#: engines are at 0.73 and above, its append-only loop at 0.000.
REWRITE_MIN = 0.5
#: A step of which at most this share of the changed bytes was a rewrite appends: counters and a
#: generator's state beside the cache are rewritten at every block.
APPEND_NOISE_MAX = 0.1
#: A step that appended nothing and rewrote at most this much of what had been written selects.
SELECT_MAX = 0.05
#: Until a cache is full, an append-only one and a window that fills look alike. Room for fewer
#: blocks than this is a window's; for more, a log's.
FILLING_BLOCKS_MAX = 32.0
#: Fewer steps show no rule, unless they rewrite.
STEPS_MIN = 2


class UpdateRule(StrEnum):
    """How blocks write a state."""

    #: Each block rewrites most of what was written: no clean prefix, pre-copy never converges.
    WINDOW_REWRITE = "window rewrite"
    #: Each block writes where nothing was written, and leaves the rest alone.
    APPEND_ONLY = "append-only"
    #: The same in a window that is soon full.
    FILLING = "filling"
    #: Written once, then selected from and not rewritten.
    FRAME_BANK = "frame bank"
    #: Written before the trace, and nothing of it changed since.
    CONSTANT = "constant"
    #: Nothing was ever written.
    NEVER_WRITTEN = "never written"
    UNKNOWN = "unknown"


class Regime(StrEnum):
    """What one step did."""

    REWRITES = "rewrites"
    APPENDS = "appends"
    SELECTS = "selects"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Classification:
    """A rule, the sentence of numbers that led to it, and the steps that it was read off."""

    rule: UpdateRule
    evidence: str
    #: Index of the first step of the present regime; those before it were of another.
    first_step: int


def regime_of(writes: Writes) -> Regime:
    """What a step did, by the thresholds above."""
    rewritten = writes.rewritten_bytes
    # First: before a cache holds anything, a generator's state is most of what was written.
    if writes.appended_bytes and rewritten <= APPEND_NOISE_MAX * writes.changed_bytes:
        return Regime.APPENDS
    if rewritten and rewritten >= REWRITE_MIN * writes.written_before_bytes:
        return Regime.REWRITES
    if not writes.appended_bytes and rewritten <= SELECT_MAX * writes.written_before_bytes:
        return Regime.SELECTS
    return Regime.MIXED


def classify(steps: Sequence[Writes]) -> Classification:
    """The rule of a trace, of the regime that it ends in; UNKNOWN where none is shown."""
    if not steps:
        return Classification(UpdateRule.UNKNOWN, "no block was observed", 0)
    if steps[-1].used_bytes == 0:
        said = f"no byte of {steps[-1].size_bytes} was ever written, up to {_blocks(steps)}"
        return Classification(UpdateRule.NEVER_WRITTEN, said, 0)
    if not any(step.changed_bytes for step in steps):
        written = steps[-1].written_before_bytes
        said = f"{_blocks(steps)} changed nothing of {written} bytes that had been written"
        return Classification(UpdateRule.CONSTANT, said, 0)
    regimes = [regime_of(step) for step in steps]
    if regimes[-1] is Regime.REWRITES:
        return _rewriting(steps, regimes)
    if regimes[-1] is Regime.MIXED:
        first = _first_of_suffix(regimes, {Regime.MIXED})
        return Classification(UpdateRule.UNKNOWN, _mixed(steps[first:]), first)
    first = _first_of_suffix(regimes, {Regime.APPENDS, Regime.SELECTS})
    seen = steps[first:]
    if len(seen) < STEPS_MIN:
        said = f"{_did(seen)}; one block shows no rule: observe at least {STEPS_MIN}"
        return Classification(UpdateRule.UNKNOWN, said, first)
    if Regime.REWRITES in regimes[:first]:
        said = f"{_did(seen)}, where blocks before them rewrote: no rule has both"
        return Classification(UpdateRule.UNKNOWN, said, first)
    if Regime.SELECTS in regimes[first:]:
        return Classification(UpdateRule.FRAME_BANK, _selecting(seen), first)
    return _appending(seen, first)


def _rewriting(steps: Sequence[Writes], regimes: Sequence[Regime]) -> Classification:
    first = _first_of_suffix(regimes, {Regime.REWRITES})
    seen = steps[first:]
    said = f"{_did(seen)} (at least {REWRITE_MIN:g} is a rewrite)"
    if first:
        before = steps[:first]
        kinds = sorted(set(regimes[:first]))
        did = "filled it" if kinds == [Regime.APPENDS] else f"({', '.join(kinds)})"
        said += f"; before them {_blocks(before)} {did} and changed {_mean_dirty(before):.3f}"
    return Classification(UpdateRule.WINDOW_REWRITE, said, first)


def _appending(seen: Sequence[Writes], first: int) -> Classification:
    blocks = sum(step.block_count for step in seen)
    a_block = sum(step.new_bytes for step in seen) / blocks
    # Appends that all ended inside one granule say nothing of how long the room lasts.
    left = seen[-1].room_bytes / a_block if a_block else math.inf
    rule = UpdateRule.APPEND_ONLY if left >= FILLING_BLOCKS_MAX else UpdateRule.FILLING
    said = (
        f"{_did(seen)}; {a_block:.0f} bytes a block went where nothing had been written, and "
        f"there is room for {left:.1f} more blocks ({FILLING_BLOCKS_MAX:g} and more: append-only)"
    )
    return Classification(rule, said, first)


def _selecting(seen: Sequence[Writes]) -> str:
    idle = sum(regime_of(step) is Regime.SELECTS for step in seen)
    return (
        f"{_did(seen)}; {idle} of {len(seen)} steps wrote nothing new, and what was written stayed "
        f"(at most {SELECT_MAX:g} of it a step was rewritten)"
    )


def _mixed(seen: Sequence[Writes]) -> str:
    appended = sum(step.appended_bytes for step in seen)
    changed = sum(step.changed_bytes for step in seen)
    return (
        f"{_did(seen)}: too little for a rewrite ({REWRITE_MIN:g}), too much for a bank "
        f"({SELECT_MAX:g}); {appended} of {changed} changed bytes were appended"
    )


def _did(steps: Sequence[Writes]) -> str:
    """What blocks rewrote and changed, as fractions."""
    before = sum(step.written_before_bytes for step in steps)
    rewritten = sum(step.rewritten_bytes for step in steps)
    share = rewritten / before if before else 0.0
    return (
        f"{_blocks(steps)} rewrote {share:.3f} of what had been written and changed "
        f"{_mean_dirty(steps):.3f} of all bytes"
    )


def _mean_dirty(steps: Sequence[Writes]) -> float:
    return sum(step.dirty_fraction for step in steps) / len(steps)


def _blocks(steps: Sequence[Writes]) -> str:
    first, last = steps[0].block_index, steps[-1].block_index + steps[-1].block_count - 1
    return f"block {first}" if first == last else f"blocks {first} to {last}"


def _first_of_suffix(regimes: Sequence[Regime], wanted: set[Regime]) -> int:
    first = len(regimes)
    while first and regimes[first - 1] in wanted:
        first -= 1
    return first
