"""Row codec: measured rows to and from their wire form; parsed once, at the edge."""

from __future__ import annotations

from worldline.admissibility.profile_row import ProfileRow, QuantumSpread, RequestShape
from worldline.contract import DecodeTier
from worldline.errors import InvalidInput
from worldline.fields import enum_member
from worldline.numa import Binding, format_cpu_list, parse_cpu_list
from worldline.v1 import contract_pb2, profile_pb2


def shape_to_proto(shape: RequestShape) -> profile_pb2.RequestShape:
    """The wire form."""
    tier = contract_pb2.DecodeTier.Name(shape.decode_tier)
    return profile_pb2.RequestShape(preset=shape.preset, decode_tier=tier)


def shape_from_proto(message: profile_pb2.RequestShape) -> RequestShape:
    """Parse.

    Raises:
        InvalidInput: as `RequestShape`.
    """
    tier = enum_member(DecodeTier, message.decode_tier, "shape.decode_tier")
    return RequestShape(message.preset, tier)


def row_to_proto(row: ProfileRow) -> profile_pb2.ProfileRow:
    """The wire form."""
    return profile_pb2.ProfileRow(
        shape=shape_to_proto(row.shape),
        binding=profile_pb2.Binding(
            cpus=format_cpu_list(row.binding.cpus), numa_node=row.binding.numa_node
        ),
        device=row.device,
        quanta_per_block=row.quanta_per_block,
        denoising_steps=row.denoising_steps,
        step=None if row.step is None else _spread_to_proto(row.step),
        closing=_spread_to_proto(row.closing),
        age_ms=row.age_ms,
    )


def row_from_proto(message: profile_pb2.ProfileRow) -> ProfileRow:
    """Parse.

    Raises:
        InvalidInput: as `ProfileRow`; or a list of CPUs that is none.
    """
    if not message.HasField("closing"):
        raise InvalidInput("the last quantum of a block was not measured", field="closing")
    return ProfileRow(
        shape=shape_from_proto(message.shape),
        binding=_binding_from_proto(message.binding),
        device=message.device,
        quanta_per_block=message.quanta_per_block,
        denoising_steps=message.denoising_steps,
        step=_spread_from_proto(message.step) if message.HasField("step") else None,
        closing=_spread_from_proto(message.closing),
        age_ms=message.age_ms,
    )


def _binding_from_proto(message: profile_pb2.Binding) -> Binding:
    try:
        cpus = parse_cpu_list(message.cpus)
    except ValueError as error:
        raise InvalidInput(f"binding.cpus: {error}", field="binding.cpus") from error
    return Binding(cpus, message.numa_node if message.HasField("numa_node") else None)


def _spread_to_proto(spread: QuantumSpread) -> profile_pb2.QuantumSpread:
    return profile_pb2.QuantumSpread(
        samples=min(spread.samples, 2**32 - 1), p50_ms=spread.p50_ms, p95_ms=spread.p95_ms
    )


def _spread_from_proto(message: profile_pb2.QuantumSpread) -> QuantumSpread:
    return QuantumSpread(message.samples, message.p50_ms, message.p95_ms)
