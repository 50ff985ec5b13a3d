"""Round trips of random trees through plan, pack, materialize and the codec."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.state.strategies import CLASSES, bits, same, tensors_in, trees
from worldline.state.arrange import groups_of
from worldline.state.codec import layout_from_proto, layout_to_proto
from worldline.state.digest import digest_slot
from worldline.state.harvest import harvest
from worldline.state.layout import Layout
from worldline.state.tree import layout_of, materialize, pack, plan
from worldline.v1 import manifest_pb2


def dirty_slot(layout: Layout, spare_bytes: int = 40) -> torch.Tensor:
    return torch.full((layout.extent_bytes + spare_bytes,), 0xAA, dtype=torch.uint8)


@given(trees())
@settings(max_examples=120, deadline=None)
def test_every_bit_survives_the_slot(tree: object) -> None:
    layout = plan(tree)
    slot = dirty_slot(layout)
    packed = pack(tree, layout, slot)
    back = materialize(packed, slot, CLASSES)
    assert same(tree, back)
    assert packed == layout
    assert (slot[layout.extent_bytes :] == 0xAA).all()


@given(trees())
@settings(max_examples=75, deadline=None)
def test_what_lies_in_a_slot_is_laid_out_as_it_was_planned(tree: object) -> None:
    layout = plan(tree)
    slot = dirty_slot(layout)
    pack(tree, layout, slot)
    back = materialize(layout, slot, CLASSES)
    assert layout_of(back, slot) == layout
    before = slot.clone()
    assert pack(back, layout, slot) == layout
    assert torch.equal(slot, before)


@given(trees())
@settings(max_examples=75, deadline=None)
def test_equal_trees_make_equal_slots_whatever_was_there(tree: object) -> None:
    layout = plan(tree)
    first = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    second = torch.full((layout.extent_bytes,), 0x55, dtype=torch.uint8)
    pack(tree, layout, first)
    pack(tree, layout, second)
    assert torch.equal(first, second)
    view = memoryview(first.numpy())
    assert digest_slot(layout, view) == digest_slot(layout, memoryview(second.numpy()))


@given(trees(), st.integers(0, 2**32))
@settings(max_examples=75, deadline=None)
def test_aliases_stay_aliases(tree: object, seed: int) -> None:
    """The same element written on both sides changes the same other leaves."""
    layout = plan(tree)
    slot = dirty_slot(layout)
    pack(tree, layout, slot)
    back = materialize(layout, slot, CLASSES)
    assert groups_of(harvest(tree).tensors) == groups_of(harvest(back).tensors)
    here, there = list(tensors_in(tree)), list(tensors_in(back))
    generator = random.Random(seed)
    for one, other in zip(here, there, strict=True):
        if one.numel():
            index = tuple(generator.randrange(size) for size in one.shape)
            data = bytearray(generator.randbytes(one.element_size()))
            value = torch.frombuffer(data, dtype=one.dtype).reshape(())
            one[index].copy_(value)
            other[index].copy_(value)
    assert [bits(tensor) for tensor in here] == [bits(tensor) for tensor in there]


@given(trees())
@settings(max_examples=75, deadline=None)
def test_the_wire_gives_back_the_layout(tree: object) -> None:
    layout = plan(tree)
    wire = layout_to_proto(layout).SerializeToString()
    again = layout_from_proto(manifest_pb2.Layout.FromString(wire))
    assert again == layout
    assert again.topology_hash == layout.topology_hash


@given(trees())
@settings(max_examples=75, deadline=None)
def test_a_slot_is_no_bigger_than_its_leaves(tree: object) -> None:
    """Compact: regions hold what leaves span, and less than 256 bytes of padding follow each."""
    layout = plan(tree)
    used = sum(region.size_bytes for region in layout.regions)
    assert layout.extent_bytes <= used + 256 * len(layout.regions)
    for index, region in enumerate(layout.regions):
        leaves = [leaf for leaf in layout.tensors if leaf.region == index]
        if len(leaves) == 1:
            assert region.size_bytes <= leaves[0].size_bytes or any(
                step == 0 for step in leaves[0].stride
            )
