"""Attributes: what changes on a model object while it generates. Weights do not."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from services.engine.check.case import Case
from services.engine.check.finding import Found, held, listed, warned
from services.engine.check.private import PrivateWorld

#: How far below the object to look: a module, its table of buffers, a buffer.
_DEPTH = 3


def holds_weights(case: Case) -> Found:
    """The object after a block is the object before."""
    changed = changed_attributes(case)
    if changed:
        return warned(
            f"a block changes {listed(changed)} of the object",
            "one object serves every session: move it into the state if it decides a frame",
        )
    return held("a block changes no attribute of the object")


def changed_attributes(case: Case) -> list[str]:
    """Names of the attributes that differ after a block of a session that goes on."""
    model = case.subject.model
    with PrivateWorld.restored(case.subject, case.reference.snapshot) as world:
        before = _marks(model, "", 0)
        world.block()
        after = _marks(model, "", 0)
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    return sorted(names)


def _marks(value: Any, path: str, depth: int) -> dict[str, object]:
    """By path, something that differs when the attribute was written."""
    fields = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    marks: dict[str, object] = {}
    if isinstance(value, (list, set, tuple, dict)):
        marks[path] = len(value)
    if not isinstance(fields, dict) or depth > _DEPTH:
        return marks
    for name, child in list(fields.items()):
        below = f"{path}.{name}".lstrip(".")
        mark = _mark(child)
        marks |= {below: mark} if mark is not None else _marks(child, below, depth + 1)
    return marks


def _mark(value: Any) -> object:
    """Of what has no fields worth looking at; None of the rest."""
    if isinstance(value, torch.Tensor):
        return (id(value), value.data_ptr(), value._version)  # noqa: SLF001 - read only
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().cpu().numpy())
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return (type(value).__name__, value)
    return None
