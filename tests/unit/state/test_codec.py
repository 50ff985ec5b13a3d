"""The wire form: exact both ways, and no single changed field passes unnoticed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.state.strategies import Record
from worldline.contract import DeterminismTier
from worldline.errors import InvalidInput, VersionSkew
from worldline.state import codec
from worldline.state.codec import (
    digests_from_proto,
    digests_to_proto,
    fingerprint_from_proto,
    fingerprint_to_proto,
    layout_from_proto,
    layout_to_proto,
    manifest_from_proto,
    manifest_to_proto,
)
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.manifest import Fingerprint, Manifest
from worldline.state.node_codec import node_from_proto
from worldline.state.tree import pack, plan
from worldline.state.validation import DEPTH_MAX
from worldline.v1 import admission_pb2, engine_pb2, manifest_pb2, mover_pb2, placement_pb2

BASE = torch.arange(12, dtype=torch.int32).view(3, 4)
TREE = {
    "cache": [{"k": BASE, "v": BASE[1:, ::2]}, (torch.ones(2, 3).t(), Record(1.5, torch.empty(0)))],
    -3: [True, 0, -1, 2**70, -0.0, 1 - 2j, "é", b"\0", None],
    "half": torch.zeros(1, 4, dtype=torch.bfloat16).expand(3, 4),
}


def sample() -> tuple[Manifest, bytes]:
    layout = plan(TREE)
    slot = torch.zeros(layout.extent_bytes, dtype=torch.uint8)
    layout = pack(TREE, layout, slot)
    data = slot.numpy().tobytes()
    manifest = Manifest(
        session_id="s-1",
        epoch=3,
        block_index=7,
        layout=layout,
        fingerprint=Fingerprint.of({"torch": "2.13.0", "threads": "2"}),
        determinism_tier=DeterminismTier.T0_BITWISE,
        digests=digest_slot(layout, memoryview(data), 32),
    )
    return manifest, data


MANIFEST, DATA = sample()
SCALAR_MUTATIONS: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_UINT32: [0, 1, 2, 5, 2**32 - 1],
    FieldDescriptor.CPPTYPE_UINT64: [0, 1, 3, 16, 2**62, 2**63, 2**64 - 16, 2**64 - 1],
    FieldDescriptor.CPPTYPE_INT64: [0, 1, -(2**63), 2**63 - 1],
    FieldDescriptor.CPPTYPE_BOOL: [False, True],
    FieldDescriptor.CPPTYPE_STRING: ["", "a", "float32", "int8", "cache[0].v", "tests.Other"],
    FieldDescriptor.CPPTYPE_ENUM: [0, 2, 3, 99],
}


def variants(field: FieldDescriptor, value: Any) -> list[Any]:
    """Other values for one field, the old one left out."""
    if field.type == FieldDescriptor.TYPE_BYTES:
        flipped = bytes([value[0] ^ 1]) + value[1:] if value else b"\1"
        return [flipped, value + b"\0", value[:-1] if value else b"\2"]
    near = [value + 1, abs(value - 1)] if type(value) is int and abs(value) < 2**31 else []
    candidates = [*near, *SCALAR_MUTATIONS[field.cpp_type]]
    return [other for other in candidates if other != value]


def mutants(root: Message) -> Iterator[tuple[str, Any]]:
    """Every message that differs from this one in a single field, by a handful of values each."""
    for steps, change in _changes(root, ()):
        other = copy_of(root)
        part = other
        for field, index in steps[:-1]:
            part = getattr(part, field) if index is None else getattr(part, field)[index]
        what = change(part)
        yield ".".join(f"{field}[{index}]" for field, index in steps) + what, other


Steps = tuple[tuple[str, Any], ...]
Change = Callable[[Any], str]


def _changes(part: Any, steps: Steps) -> Iterator[tuple[Steps, Change]]:
    for field in part.DESCRIPTOR.fields:
        name = field.name
        value = getattr(part, name)
        here = (*steps, (name, None))
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in value:
                yield here, lambda m, n=name, k=key: set_key(getattr(m, n), k)
        elif field.is_repeated:
            yield from _changes_of_items(field, list(value), steps)
        elif field.message_type is not None:
            if part.HasField(name):
                yield here, lambda m, n=name: clear(m, n)
                yield from _changes(value, here)
        elif not field.has_presence or part.HasField(name):
            for other in variants(field, value):
                yield here, lambda m, n=name, o=other: set_value(m, n, o)
            if field.has_presence:
                yield here, lambda m, n=name: clear(m, n)


def _changes_of_items(
    field: FieldDescriptor, items: list[Any], steps: Steps
) -> Iterator[tuple[Steps, Change]]:
    for index, item in enumerate(items):
        for others in neighbours(field, items, index):
            yield (*steps, (field.name, None)), lambda m, o=others: set_items(m, field.name, o)
        if field.message_type is not None:
            yield from _changes(item, (*steps, (field.name, index)))


def neighbours(field: FieldDescriptor, items: list[Any], index: int) -> Iterator[list[Any]]:
    """The list with one item dropped, doubled, swapped or replaced."""
    before, item, after = items[:index], items[index], items[index + 1 :]
    yield before + after
    yield [*before, item, item, *after]
    if before and before[-1] != item:
        yield [*before[:-1], item, before[-1], *after]
    if field.message_type is None:
        for other in variants(field, item):
            yield [*before, other, *after]


def set_key(values: Any, key: str) -> str:
    values[key] += "x"
    return f"[{key}] changed"


def set_items(message: Any, name: str, items: list[Any]) -> str:
    kept = [copy_of(item) if isinstance(item, Message) else item for item in items]
    message.ClearField(name)
    getattr(message, name).extend(kept)
    return f" = {items}"


def set_value(message: Any, name: str, value: Any) -> str:
    setattr(message, name, value)
    return f" = {value!r}"


def clear(message: Any, name: str) -> str:
    message.ClearField(name)
    return " cleared"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)


def copy_of(message: Any) -> Any:
    other = type(message)()
    other.CopyFrom(message)
    return other


def test_a_manifest_round_trips() -> None:
    message = manifest_to_proto(MANIFEST)
    again = manifest_from_proto(manifest_pb2.Manifest.FromString(message.SerializeToString()))
    assert again == MANIFEST
    assert again.fingerprint.facts == MANIFEST.fingerprint.facts
    assert manifest_to_proto(again) == message
    bare = replace(MANIFEST, digests=None)
    assert manifest_from_proto(manifest_to_proto(bare)) == bare


def test_the_mutants_are_many_and_differ() -> None:
    message = layout_to_proto(MANIFEST.layout)
    before = message.SerializeToString(deterministic=True)
    every = list(mutants(message))
    assert len(every) > 600
    assert all(other != message for _, other in every)
    assert message.SerializeToString(deterministic=True) == before


def test_no_mutated_layout_passes_for_the_original() -> None:
    """Each is refused, or its digest over the same bytes is another."""
    whole = digest_slot(MANIFEST.layout, memoryview(DATA), 32).whole
    accepted = 0
    for what, message in mutants(layout_to_proto(MANIFEST.layout)):
        try:
            layout = layout_from_proto(message)
        except (InvalidInput, VersionSkew):
            continue
        accepted += 1
        assert layout.topology_hash == MANIFEST.layout.topology_hash, what
        assert layout != MANIFEST.layout, what
        assert digest_slot(layout, memoryview(DATA), 32).whole != whole, what
    assert accepted > 10  # scalar values may change; they are part of the digest


def test_no_mutated_topology_keeps_its_hash() -> None:
    """As above, by someone who computes the hash anew: refused, or another topology."""
    proper = MANIFEST.layout
    seen = 0
    for what, message in mutants(layout_to_proto(proper)):
        if any(word in what for word in ("topology_hash", "version", "_value", "_bits")):
            continue
        seen += 1
        try:
            layout = layout_from_proto(rehashed(message))
        except InvalidInput:
            continue
        assert layout.topology_hash != proper.topology_hash, what
    assert seen > 400


def rehashed(message: manifest_pb2.Layout) -> manifest_pb2.Layout:
    """The message with the hash that its content has, if it has one."""
    message.topology_hash = bytes(32)
    try:
        layout_from_proto(message)
    except InvalidInput as error:
        if error.field == "layout.topology_hash":
            message.topology_hash = bytes.fromhex(error.message.rsplit(" ", 1)[1])
    return message


def test_no_mutated_manifest_equals_the_original() -> None:
    for what, message in mutants(manifest_to_proto(MANIFEST)):
        try:
            manifest = manifest_from_proto(message)
        except (InvalidInput, VersionSkew):
            continue
        assert manifest != MANIFEST, what


@given(st.binary(max_size=200), st.integers(0, 10_000), st.integers(0, 400))
@settings(max_examples=150, deadline=None)
def test_garbled_bytes_give_a_typed_error_or_a_valid_manifest(
    noise: bytes, at: int, cut: int
) -> None:
    wire = manifest_to_proto(MANIFEST).SerializeToString()
    at %= len(wire)
    garbled = wire[:at] + noise + wire[at + cut :]
    try:
        message = manifest_pb2.Manifest.FromString(garbled)
    except DecodeError:
        return
    try:
        manifest = manifest_from_proto(message)
    except (InvalidInput, VersionSkew):
        return
    assert isinstance(manifest.layout, Layout)


@pytest.mark.parametrize("part", ["layout", "fingerprint", "session_id", "determinism_tier"])
def test_a_manifest_without_a_part_is_refused(part: str) -> None:
    message = manifest_to_proto(MANIFEST)
    message.ClearField(part)
    with pytest.raises(InvalidInput) as caught:
        manifest_from_proto(message)
    assert part in str(caught.value.field)


@pytest.mark.parametrize("topology_hash", [b"", bytes(32), bytes(31)])
def test_a_layout_without_its_hash_is_refused(topology_hash: bytes) -> None:
    message = layout_to_proto(MANIFEST.layout)
    message.topology_hash = topology_hash
    with pytest.raises(InvalidInput) as caught:
        layout_from_proto(message)
    assert caught.value.field == "layout.topology_hash"


def test_an_empty_layout_is_of_an_unknown_version() -> None:
    with pytest.raises(VersionSkew):
        layout_from_proto(manifest_pb2.Layout())


def test_a_scalar_without_value_is_refused_by_name() -> None:
    message = layout_to_proto(MANIFEST.layout)
    message.scalars[2].ClearField("int_value")
    with pytest.raises(InvalidInput) as caught:
        layout_from_proto(message)
    assert caught.value.leaf == message.scalars[2].path


def test_a_remembered_topology_takes_the_scalars_of_each_message() -> None:
    tree: dict[str, Any] = {"x": torch.zeros(2), "n": 1}
    one = layout_to_proto(plan(tree))
    tree["n"] = "two"
    two = layout_to_proto(plan(tree))
    for message, value in ((one, 1), (two, "two"), (one, 1)):
        assert layout_from_proto(message).scalar_values() == {"n": value}
    two.scalars[0].ClearField("string_value")
    with pytest.raises(InvalidInput) as caught:
        layout_from_proto(two)
    assert caught.value.leaf == "n"


def ways_to_layout(message: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The fields by which a message holds a layout, however deep."""
    for field in message.fields:
        if field.message_type is None or field.message_type == message:
            continue
        if field.message_type.full_name == manifest_pb2.Layout.DESCRIPTOR.full_name:
            yield (field,)
        elif field.message_type.file.package == message.file.package:
            yield from ((field, *rest) for rest in ways_to_layout(field.message_type))


def deepest_way() -> tuple[FieldDescriptor, ...]:
    files = (admission_pb2, engine_pb2, mover_pb2, placement_pb2)
    services = [one for file in files for one in file.DESCRIPTOR.services_by_name.values()]
    methods = [method for service in services for method in service.methods]
    messages = [one for method in methods for one in (method.input_type, method.output_type)]
    return max((way for message in messages for way in ways_to_layout(message)), key=len)


@pytest.mark.parametrize("wrap", [lambda x: {"k": x}, lambda x: Record(1, x), lambda x: [x]])
def test_the_deepest_tree_fits_the_deepest_message(wrap: Callable[[object], object]) -> None:
    """protobuf gives up at a hundred levels; ours must stay below in the deepest of requests."""
    tree: object = torch.zeros(1)
    for _ in range(DEPTH_MAX):
        tree = wrap(tree)
    way, layout = deepest_way(), plan(tree)
    assert len(way) >= 2
    message: Message = layout_to_proto(layout)
    for field in reversed(way):
        around = GetMessageClass(field.containing_type)()
        value = getattr(around, field.name)
        if field.is_repeated:
            value.append(message)
        else:
            value.CopyFrom(message)
        message = around
    parsed = type(message).FromString(message.SerializeToString())
    for field in way:
        value = getattr(parsed, field.name)
        parsed = value[0] if field.is_repeated else value
    assert layout_from_proto(parsed) == layout


def test_parsing_stops_at_the_depth_bound() -> None:
    message = manifest_pb2.TreeNode(tensor=0)
    for _ in range(DEPTH_MAX + 1):
        message = manifest_pb2.TreeNode(list=manifest_pb2.Sequence(items=[message]))
    with pytest.raises(InvalidInput) as caught:
        node_from_proto(message)
    assert caught.value.leaf == "[0]" * DEPTH_MAX
    node_from_proto(message.list.items[0])


def test_only_a_few_topologies_are_remembered() -> None:
    for size in range(3 * codec._REMEMBERED_COUNT):
        layout = plan([torch.zeros(size), size])
        for value in (size, "later"):
            now = layout.with_scalars({"[1]": value})
            assert layout_from_proto(layout_to_proto(now)) == now
        assert layout.topology_hash in codec._wires
    assert len(codec._wires) == codec._REMEMBERED_COUNT


def test_a_topology_too_large_to_remember_is_parsed_all_the_same() -> None:
    layout = plan({"k" * 200_000: torch.zeros(2), "n": 3})
    assert layout_from_proto(layout_to_proto(layout)) == layout


def test_a_huge_claim_costs_nothing() -> None:
    """2**62 bytes are only a number until somebody allocates them."""
    layout = replace(
        plan({"x": torch.zeros(4, dtype=torch.uint8)}),
        topology_hash=b"",
    )
    message = layout_to_proto(layout)
    for number in (2**62, 2**64 - 1):
        message.tensors[0].shape[0] = number
        with pytest.raises(InvalidInput) as caught:
            layout_from_proto(message)
        assert caught.value.leaf == "x"


def test_digests_are_held_against_their_layout() -> None:
    assert MANIFEST.digests is not None
    message = digests_to_proto(MANIFEST.digests)
    assert digests_from_proto(message, MANIFEST.layout) == MANIFEST.digests
    for field in ("algorithm", "granule_bytes", "granules", "leaves"):
        other = copy_of(message)
        other.ClearField(field)
        with pytest.raises(InvalidInput):
            digests_from_proto(other, MANIFEST.layout)


def test_a_fingerprint_is_its_facts() -> None:
    mine = Fingerprint.of({"torch": "2.13.0", "threads": "2"})
    assert mine == Fingerprint.of({"threads": "2", "torch": "2.13.0"})
    theirs = Fingerprint.of({"torch": "2.12.1", "threads": "2", "amx": "yes"})
    assert mine != theirs
    assert mine.differences(mine) == ()
    assert mine.differences(theirs) == (
        "amx: absent here, 'yes' there",
        "torch: '2.13.0' here, '2.12.1' there",
    )
    message = fingerprint_to_proto(mine)
    assert fingerprint_from_proto(message) == mine
    message.facts["threads"] = "4"
    with pytest.raises(InvalidInput):
        fingerprint_from_proto(message)
    with pytest.raises(InvalidInput):
        fingerprint_from_proto(manifest_pb2.Fingerprint())
    with pytest.raises(InvalidInput):
        fingerprint_from_proto(fingerprint_to_proto(Fingerprint.of({})))
    with pytest.raises(TypeError):
        mine.facts["threads"] = "4"  # type: ignore[index]


@given(st.dictionaries(texts, texts, max_size=4))
def test_no_two_sets_of_facts_look_alike(facts: dict[str, str]) -> None:
    moved = {name + value[:1]: value[1:] for name, value in facts.items()}
    assert (Fingerprint.of(facts) == Fingerprint.of(moved)) == (facts == moved)


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": ""},
        {"session_id": "a b"},
        {"epoch": -1},
        {"epoch": 2**63},
        {"block_index": -1},
        {"block_index": True},
        {"determinism_tier": 0},
    ],
)
def test_a_manifest_that_says_nonsense_cannot_be_built(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        replace(MANIFEST, **change)
    assert caught.value.field == f"manifest.{next(iter(change))}"


def test_float_bits_on_the_wire_are_ieee_754() -> None:
    layout = plan([1.5])
    assert (
        layout_to_proto(layout).scalars[0].float_bits
        == struct.unpack("<Q", struct.pack("<d", 1.5))[0]
    )
