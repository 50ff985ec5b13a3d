"""Check of leaves: each counts, because a state with another value in it goes on differently."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from services.engine.check.case import Case
from services.engine.check.finding import Found, failed, held, listed, warned
from services.engine.check.private import PrivateWorld, Seen
from worldline.errors import WorldlineError
from worldline.state.harvest import FoundTensor, harvest
from worldline.state.scalar import ScalarValue
from worldline.state.view import copy_bits

#: A leaf whose value changes nothing within so many blocks is reported.
_BLOCKS = 2
_INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class _Leaf:
    """A tensor or a scalar of the state, by its place in the tree."""

    path: str
    #: Index among the tensors; None for a scalar.
    tensor: int | None


def leaves(case: Case) -> Found:
    """Another value in a leaf shows in what follows, or is refused; what does not is listed."""
    found = [_Leaf(one.path, None) for one in case.subject.layout.scalars]
    tensors = [_Leaf(one.path, at) for at, one in enumerate(case.subject.layout.tensors)]
    chosen = spread_over_kinds(tensors, case.wish.leaves) + found
    unread = []
    for number, leaf in enumerate(chosen):
        case.progress(f"{number} of {len(chosen)} leaves")
        if not _diverges(case, leaf):
            unread.append(leaf.path)
    looked = f"{len(chosen)} of {len(tensors) + len(found)} leaves"
    if len(unread) == len(chosen):
        return failed(
            f"none of {looked} changes what follows",
            "block must go on from the state it is given, not from one of its own",
        )
    if unread:
        return warned(
            f"{len(unread)} of {len(chosen)} leaves change nothing within {_BLOCKS} blocks: "
            f"{listed(kinds(unread))}",
            "leave out of state_spec what nobody reads; keep what is derived again to the same",
        )
    return held(f"every bit pattern counts: {looked} perturbed, each shows or is refused")


def kinds(paths: Sequence[str]) -> list[str]:
    """Paths that differ in a list's index only, as one: `kv_cache[2, 3].k`."""
    grouped: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        grouped[re.sub(r"\[\d+\]", "[#]", path, count=1)].append(path)
    shown = []
    for kind, members in grouped.items():
        indices = [re.findall(r"\[(\d+)\]", member)[0] for member in members if "[#]" in kind]
        shown.append(kind.replace("#", ", ".join(indices)) if indices else kind)
    return shown


def spread_over_kinds(found: Sequence[_Leaf], at_most: int) -> list[_Leaf]:
    """As many as allowed: of every kind the first, then of each the next, in the tree's order."""
    grouped: defaultdict[str, list[_Leaf]] = defaultdict(list)
    for leaf in found:
        grouped[re.sub(r"\d+", "#", leaf.path)].append(leaf)
    ranked = [(rank, leaf) for group in grouped.values() for rank, leaf in enumerate(group)]
    ranked.sort(key=lambda one: one[0])
    chosen = {leaf.path for _, leaf in ranked[:at_most]}
    return [leaf for leaf in found if leaf.path in chosen]


def _diverges(case: Case, leaf: _Leaf) -> bool:
    """Whether a changed leaf shows in any frame, or in the state but for itself."""
    with PrivateWorld.restored(case.subject, case.reference.snapshot) as world:
        if leaf.tensor is None:
            _perturb_scalar(world.state, leaf.path)
        else:
            _perturb(harvest(world.state).tensors[leaf.tensor])
        for expected in case.reference.after[:_BLOCKS]:
            try:
                seen = world.seen(world.block())
            except (WorldlineError, RuntimeError, IndexError, ValueError, ArithmeticError):
                return True  # refused, or of no use any more: it was read
            if _differ(expected, seen, leaf):
                return True
    return False


def _differ(expected: Seen, seen: Seen, leaf: _Leaf) -> bool:
    if expected.frames_digest != seen.frames_digest:
        return True
    tensors = zip(expected.leaf_digests, seen.leaf_digests, strict=True)
    if any(one != other and at != leaf.tensor for at, (one, other) in enumerate(tensors)):
        return True
    scalars = zip(expected.scalars, seen.scalars, strict=True)
    return any(one != other and one[0] != leaf.path for one, other in scalars)


def _perturb(item: FoundTensor) -> None:
    """Flip one bit of every element: of floats the top one of the exponent, else the lowest.

    A zero becomes a two and what is of order one becomes huge: it shows through any rounding.
    """
    tensor = item.value
    if not isinstance(tensor, torch.Tensor) or not tensor.numel():
        return
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    bits = parts.contiguous().view(_INTS[parts.element_size()]).clone()
    if parts.dtype is torch.bool:
        bits.bitwise_xor_(1)
    elif parts.is_floating_point():
        bits.bitwise_xor_(1 << (8 * parts.element_size() - 2))
    else:
        bits.bitwise_xor_(1)
    copy_bits(bits.view(parts.dtype), parts)


def _perturb_scalar(state: Any, path: str) -> None:
    """Another value of the same type."""
    node, key = state, None
    for step in re.findall(r"\[(\d+)\]|([^.\[\]]+)", path):
        if key is not None:
            node = node[key]
        key = int(step[0]) if step[0] else step[1]
    node[key] = _other(node[key])


def _other(value: ScalarValue) -> ScalarValue:
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, (int, float, complex)):
        return value + 1
    return value + "x" if isinstance(value, str) else value + b"x"
