"""Checks of continuity: what follows a state follows it anywhere, and again."""

from __future__ import annotations

import torch

from services.engine.check.case import Case
from services.engine.check.finding import Found, failed, held, listed
from services.engine.check.private import PrivateWorld, first_difference
from services.engine.memory import Memory
from worldline.errors import InvariantBroken, WorldlineError
from worldline.state.codec import layout_from_proto, layout_to_proto
from worldline.state.digest import digest_slot
from worldline.state.harvest import harvest
from worldline.state.layout import DictNode, Layout, ListNode, Node, ScalarNode, TensorNode
from worldline.state.tree import materialize, pack
from worldline.state.view import copy_bits

_CAPTURE = (
    "something that decides the next frame is not in state_spec: look for generators, counters "
    "and caches on the object, in its modules or in a library, and put them into the tree"
)
_DETERMINISM = (
    "the same state and action must give the same bits: look for the wall clock, object ids, "
    "addresses, hash order, global generators, and kernels that are not deterministic"
)


def repeated(case: Case) -> Found:
    """A second session with the same seed, in this process, at another address."""
    blocks, seed = case.wish.blocks, case.wish.seed
    avoid = case.reference.address
    with PrivateWorld.opened(case.subject, seed, avoid_address=avoid) as world:
        seen = world.play(blocks)
    found = first_difference(case.subject.layout, case.reference.before, seen)
    if found:
        return failed(f"a second session with seed {seed}: {found}", _DETERMINISM)
    return held(f"seed {seed} again: {blocks} blocks with the same bits")


def fresh_process(case: Case) -> Found:
    """A captured state goes on, in a process that knows nothing else, as if it had never moved."""
    snapshot, blocks = case.reference.snapshot, case.wish.blocks
    try:
        seen = case.elsewhere.continued(case.subject.name, case.wish.weights_seed, snapshot, blocks)
    except InvariantBroken as error:
        return failed(
            f"a captured state does not go on in a fresh process: {error.message}", _CAPTURE
        )
    found = first_difference(case.subject.layout, case.reference.after, seen)
    if found:
        return failed(f"continued in a fresh process, {found}{_kept_on(case)}", _CAPTURE)
    return held(f"{blocks} blocks after block {snapshot.block_index} with the same bits")


def two_processes(case: Case) -> Found:
    """The same seed in another process, with another clock, hash seed and global generators."""
    reference = case.reference
    expected = (*reference.before, *reference.after)
    try:
        seen = case.elsewhere.replayed(
            case.subject.name, case.wish.weights_seed, case.wish.seed, len(expected)
        )
    except InvariantBroken as error:
        return failed(f"it does not run in another process: {error.message}", _DETERMINISM)
    found = first_difference(case.subject.layout, expected, seen)
    if found:
        return failed(f"seed {case.wish.seed} in another process: {found}", _DETERMINISM)
    return held(f"seed {case.wish.seed}: {len(expected)} blocks with the same bits")


def unpacked(case: Case) -> Found:
    """A state that was packed, sent and unpacked elsewhere has the same bits, and goes on."""
    snapshot, layout = case.reference.snapshot, case.reference.snapshot.layout
    if layout_from_proto(layout_to_proto(layout)) != layout:
        raise InvariantBroken("a layout does not survive its message")
    buffer = torch.frombuffer(bytearray(snapshot.data), dtype=torch.uint8)
    spread = _spread(layout, buffer)
    again = torch.full_like(buffer, 0x5A)
    try:
        packed = pack(spread, layout, again)
    except WorldlineError as error:
        return failed(f"it cannot be packed: {error.message}", "see worldline.state.tree")
    before, after = (digest_slot(layout, one.numpy().data) for one in (buffer, again))
    if after != before or packed != layout:
        leaves = zip(layout.tensors, before.leaves, after.leaves, strict=True)
        differ = [leaf.path for leaf, one, other in leaves if one != other]
        return failed(f"bits change when packed: {listed(differ)}", "report it: this is our bug")
    return _goes_on_elsewhere(case)


def _goes_on_elsewhere(case: Case) -> Found:
    snapshot, blocks = case.reference.snapshot, case.wish.blocks
    avoid = case.reference.address
    with PrivateWorld.restored(case.subject, snapshot, avoid_address=avoid) as world:
        own = _owns(world.memory)
        seen = world.play(blocks)
    found = first_difference(case.subject.layout, case.reference.after, seen)
    if found:
        return failed(
            f"unpacked at another address, {found}",
            "depend on the values of leaves alone, never on their addresses or on who has them",
        )
    into = "tensors of its own" if own else "another slot"
    return held(
        f"{len(snapshot.layout.tensors)} leaves of other strides are packed bit for bit; "
        f"{blocks} blocks go on in {into}"
    )


def _owns(memory: Memory) -> bool:
    return memory.copies


def _spread(layout: Layout, buffer: torch.Tensor) -> object:
    """The tree with each tensor in memory of its own, its dimensions in the opposite order."""
    tree = materialize(layout, buffer)
    values = [item.value for item in harvest(tree).tensors]
    turned = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise InvariantBroken("a materialized tree holds a spec")
        shape = tuple(reversed(value.shape))
        other = torch.empty(shape, dtype=value.dtype).permute(*reversed(range(len(shape))))
        copy_bits(value, other)
        turned.append(other)
    return _grown(layout.root, layout, turned)


def _grown(node: Node, layout: Layout, tensors: list[torch.Tensor]) -> object:
    match node:
        case TensorNode(index):
            return tensors[index]
        case ScalarNode(index):
            return layout.scalars[index].value
        case ListNode(items):
            return [_grown(item, layout, tensors) for item in items]
        case DictNode(entries):
            return {key: _grown(child, layout, tensors) for key, child in entries}
    raise InvariantBroken(f"a state tree of dicts and lists has a {type(node).__name__}")


def _kept_on(case: Case) -> str:
    """Which attributes of the object change while it generates: where to look first."""
    from services.engine.check.attributes import changed_attributes

    changed = changed_attributes(case)
    return f"; while it generates, {listed(changed)} of the object changes" if changed else ""
