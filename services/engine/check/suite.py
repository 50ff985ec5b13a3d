"""Suite: every check, in order, each with one finding whatever the model does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from services.engine.check.attributes import holds_weights
from services.engine.check.blame import blamed
from services.engine.check.blocks import (
    block_index,
    frames,
    in_place,
    interleaved,
    ladder,
    process_wide,
)
from services.engine.check.branching import split
from services.engine.check.case import Case
from services.engine.check.continuity import fresh_process, repeated, two_processes, unpacked
from services.engine.check.finding import Finding, Found, Outcome, failed
from services.engine.check.fresh import initialise, state_spec
from services.engine.check.leaves import leaves
from services.engine.check.members import code, interface, weights


@dataclass(frozen=True)
class Check:
    """One question to a model. Where a `needed` one fails, nothing after it can be asked."""

    name: str
    ask: Callable[[Case], Found]
    needed: bool = False

    @property
    def says(self) -> str:
        """What it holds a model to."""
        return (self.ask.__doc__ or "").splitlines()[0]


CHECKS = (
    Check("interface", interface, needed=True),
    Check("code", code),
    Check("weights", weights),
    Check("state-spec", state_spec, needed=True),
    Check("initialise", initialise, needed=True),
    Check("in-place", in_place, needed=True),
    Check("frames", frames, needed=True),
    Check("repeated", repeated),
    Check("process-wide", process_wide),
    Check("object", holds_weights),
    Check("interleaved", interleaved),
    Check("ladder", ladder),
    Check("block-index", block_index),
    Check("unpacked", unpacked),
    Check("fresh-process", fresh_process),
    Check("two-processes", two_processes),
    Check("leaves", leaves),
    Check("split", split),
)


def findings(case: Case, on_begin: Callable[[str], None] = lambda name: None) -> Iterator[Finding]:
    """Ask everything; `on_begin` hears the name of each check before it runs."""
    lacking = ""
    for check in CHECKS:
        if lacking:
            yield Finding(check.name, Outcome.SKIPPED, f"needs {lacking}")
            continue
        on_begin(check.name)
        found = _asked(check, case)
        if check.needed and found.outcome is Outcome.FAILED:
            lacking = check.name
        yield Finding(check.name, found.outcome, found.evidence, found.remedy)


def _asked(check: Check, case: Case) -> Found:
    """A model that raises fails the check: an engine would end its world."""
    try:
        # Whatever a model leaves behind, the next check begins as this one did.
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            return check.ask(case)
    except Exception as error:
        return failed(f"the model raised {blamed(error)}", f"see docs/engines.md: {check.says}")
