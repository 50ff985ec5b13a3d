"""Codec: layouts, manifests, digests and fingerprints to protobuf and back.

Parsing is total: a message gives a valid value, or InvalidInput with field and leaf (VersionSkew
for a layout of another version). Nothing is trusted that can be recomputed.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from worldline.contract import DeterminismTier
from worldline.errors import InvalidInput
from worldline.fields import enum_member
from worldline.state.difference import check_digests
from worldline.state.layout import Layout, Region, ScalarLeaf, TensorLeaf
from worldline.state.manifest import Digests, Fingerprint, Manifest
from worldline.state.node_codec import node_from_proto, node_to_proto
from worldline.state.scalar import Kind, ScalarValue, decode
from worldline.state.validation import check_version
from worldline.v1 import contract_pb2, manifest_pb2

_TOPOLOGY_HASH_BYTES = 32
#: Topologies beyond this are parsed every time, which bounds what a peer can make us remember.
_REMEMBERED_BYTES_MAX = 256 << 10
_REMEMBERED_COUNT = 16


def layout_to_proto(layout: Layout) -> manifest_pb2.Layout:
    """The wire form; `layout_from_proto` gives back an equal layout.

    The part that is the same at every block is remembered by its hash, as it is for parsing.
    """
    wire = _wires.get(layout.topology_hash)
    if wire is None:
        wire = _topology_to_proto(layout).SerializeToString()
        if len(wire) <= _REMEMBERED_BYTES_MAX:
            _remember(layout.topology_hash, wire)
    message = manifest_pb2.Layout.FromString(wire)
    message.scalars.extend(_scalar_to_proto(scalar) for scalar in layout.scalars)
    return message


def scalars_to_proto(layout: Layout) -> list[manifest_pb2.ScalarLeaf]:
    """The scalars alone: all that changes in a layout from block to block."""
    return [_scalar_to_proto(scalar) for scalar in layout.scalars]


def layout_with_scalars(layout: Layout, messages: Sequence[manifest_pb2.ScalarLeaf]) -> Layout:
    """The layout with the scalars of another block.

    Raises:
        InvalidInput: not exactly the layout's scalars, each once, or one of them is malformed.
    """
    paths = sorted(message.path for message in messages)
    if paths != sorted(scalar.path for scalar in layout.scalars):
        raise InvalidInput(
            f"{len(paths)} scalars that are not the layout's {len(layout.scalars)}", field="scalars"
        )
    return layout.with_scalars({message.path: _scalar_value(message) for message in messages})


#: Serialized topologies by their hash, oldest first.
_wires: dict[bytes, bytes] = {}


def _remember(topology_hash: bytes, wire: bytes) -> None:
    for oldest in list(_wires)[: max(len(_wires) - _REMEMBERED_COUNT + 1, 0)]:
        _wires.pop(oldest, None)
    _wires[topology_hash] = wire


def _topology_to_proto(layout: Layout) -> manifest_pb2.Layout:
    """Everything but the scalars."""
    return manifest_pb2.Layout(
        version=layout.version,
        regions=[
            manifest_pb2.Region(offset_bytes=region.offset_bytes, size_bytes=region.size_bytes)
            for region in layout.regions
        ],
        tensors=[
            manifest_pb2.TensorLeaf(
                path=leaf.path,
                dtype=leaf.dtype,
                shape=leaf.shape,
                stride=leaf.stride,
                offset_bytes=leaf.offset_bytes,
                size_bytes=leaf.size_bytes,
                region=leaf.region,
            )
            for leaf in layout.tensors
        ],
        root=node_to_proto(layout.root),
        extent_bytes=layout.extent_bytes,
        topology_hash=layout.topology_hash,
    )


def layout_from_proto(message: manifest_pb2.Layout) -> Layout:
    """Parse once, at the edge.

    A session's topology is the same at every block, so a topology that was checked once is not
    checked again while it is among the last few: parsing falls into the time a world is frozen.

    Raises:
        InvalidInput: anything malformed or contradictory; `leaf` where one is at fault.
        VersionSkew: another layout version.
    """
    check_version(message.version)  # first: another version may mean anything else differently
    values = {item.path: _scalar_value(item) for item in message.scalars}
    bare = manifest_pb2.Layout()
    bare.CopyFrom(message)
    for scalar in bare.scalars:
        scalar.none_value.SetInParent()
    wire = bare.SerializeToString(deterministic=True)
    parse = _parse if len(wire) <= _REMEMBERED_BYTES_MAX else _parse.__wrapped__
    return parse(wire).with_scalars(values)


@lru_cache(maxsize=_REMEMBERED_COUNT)
def _parse(wire: bytes) -> Layout:
    """The layout of a serialized message; its scalars are None."""
    message = manifest_pb2.Layout.FromString(wire)
    if len(message.topology_hash) != _TOPOLOGY_HASH_BYTES:
        raise InvalidInput(
            f"topology hash of {len(message.topology_hash)} bytes instead of "
            f"{_TOPOLOGY_HASH_BYTES}",
            field="layout.topology_hash",
        )
    return Layout(
        version=message.version,
        regions=tuple(Region(item.offset_bytes, item.size_bytes) for item in message.regions),
        tensors=tuple(
            TensorLeaf(
                path=item.path,
                dtype=item.dtype,
                shape=tuple(item.shape),
                stride=tuple(item.stride),
                offset_bytes=item.offset_bytes,
                size_bytes=item.size_bytes,
                region=item.region,
            )
            for item in message.tensors
        ),
        scalars=tuple(ScalarLeaf(item.path, None) for item in message.scalars),
        root=node_from_proto(message.root),
        extent_bytes=message.extent_bytes,
        topology_hash=message.topology_hash,
    )


def digests_to_proto(digests: Digests) -> manifest_pb2.Digests:
    """The wire form."""
    return manifest_pb2.Digests(
        algorithm=digests.algorithm,
        granule_bytes=digests.granule_bytes,
        granules=digests.granules,
        leaves=digests.leaves,
        whole=digests.whole,
    )


def digests_from_proto(message: manifest_pb2.Digests, layout: Layout) -> Digests:
    """Parse and hold against the layout that the digests are of.

    Raises:
        InvalidInput: absent, truncated, or of another algorithm.
    """
    digests = Digests(
        algorithm=message.algorithm,
        granule_bytes=message.granule_bytes,
        granules=tuple(message.granules),
        leaves=tuple(message.leaves),
        whole=message.whole,
    )
    return check_digests(layout, digests)


def fingerprint_to_proto(fingerprint: Fingerprint) -> manifest_pb2.Fingerprint:
    """The wire form."""
    return manifest_pb2.Fingerprint(hash=fingerprint.hash, facts=dict(fingerprint.facts))


def fingerprint_from_proto(message: manifest_pb2.Fingerprint) -> Fingerprint:
    """Parse; the hash is computed again from the facts.

    Raises:
        InvalidInput: no facts, or a hash that is not theirs.
    """
    if not message.facts:
        raise InvalidInput("the fingerprint is absent", field="fingerprint.facts")
    return Fingerprint(hash=message.hash, facts=dict(message.facts))


def manifest_to_proto(manifest: Manifest) -> manifest_pb2.Manifest:
    """The wire form; `manifest_from_proto` gives back an equal manifest."""
    digests = manifest.digests
    return manifest_pb2.Manifest(
        session_id=manifest.session_id,
        epoch=manifest.epoch,
        block_index=manifest.block_index,
        layout=layout_to_proto(manifest.layout),
        fingerprint=fingerprint_to_proto(manifest.fingerprint),
        determinism_tier=contract_pb2.DeterminismTier.Name(manifest.determinism_tier),
        digests=None if digests is None else digests_to_proto(digests),
    )


def manifest_from_proto(message: manifest_pb2.Manifest) -> Manifest:
    """Parse once, at the edge.

    Raises:
        InvalidInput: any part is absent or malformed.
        VersionSkew: another layout version.
    """
    for name in ("layout", "fingerprint"):
        if not message.HasField(name):
            raise InvalidInput(f"the manifest has no {name}", field=f"manifest.{name}")
    layout = layout_from_proto(message.layout)
    return Manifest(
        session_id=message.session_id,
        epoch=message.epoch,
        block_index=message.block_index,
        layout=layout,
        fingerprint=fingerprint_from_proto(message.fingerprint),
        determinism_tier=enum_member(
            DeterminismTier, message.determinism_tier, "manifest.determinism_tier"
        ),
        digests=(
            digests_from_proto(message.digests, layout) if message.HasField("digests") else None
        ),
    )


def _scalar_to_proto(scalar: ScalarLeaf) -> manifest_pb2.ScalarLeaf:
    kind, payload = scalar.canonical()
    message = manifest_pb2.ScalarLeaf(path=scalar.path)
    match kind:
        case Kind.NONE:
            message.none_value.SetInParent()
        case Kind.BOOL:
            message.bool_value = payload == b"\x01"
        case Kind.INT:
            message.int_value = payload
        case Kind.FLOAT:
            message.float_bits = int.from_bytes(payload, "little")
        case Kind.COMPLEX:
            real_bits, imag_bits = struct.unpack("<QQ", payload)
            message.complex_bits.real_bits = real_bits
            message.complex_bits.imag_bits = imag_bits
            message.complex_bits.SetInParent()
        case Kind.STRING:
            message.string_value = payload.decode("utf-8")
        case Kind.BYTES:
            message.bytes_value = payload
    return message


def _scalar_value(message: manifest_pb2.ScalarLeaf) -> ScalarValue:
    match message.WhichOneof("value"):
        case "bool_value":
            return message.bool_value
        case "int_value":
            return decode(Kind.INT, message.int_value, leaf=message.path)
        case "float_bits":
            return decode(Kind.FLOAT, struct.pack("<Q", message.float_bits), leaf=message.path)
        case "string_value":
            return message.string_value
        case "bytes_value":
            return message.bytes_value
        case "none_value":
            return None
        case "complex_bits":
            bits = message.complex_bits
            payload = struct.pack("<QQ", bits.real_bits, bits.imag_bits)
            return decode(Kind.COMPLEX, payload, leaf=message.path)
        case _:
            raise InvalidInput(
                f"scalar {message.path} has no value of a known kind",
                field="layout.scalars.value",
                leaf=message.path,
            )
