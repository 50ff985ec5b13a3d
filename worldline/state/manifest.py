"""Manifest: the typed description of one frozen or live state tree."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from worldline.contract import DeterminismTier
from worldline.errors import InvalidInput
from worldline.fields import enum_member, identifier, whole
from worldline.state.layout import Layout

#: Fact of a fingerprint: the presets that an engine serves, by name, separated by spaces.
PRESETS_FACT = "presets"
#: The only algorithm; a digest of another one is refused, never skipped.
CRC64NVME = "crc64nvme"


@dataclass(frozen=True, slots=True)
class Digests:
    """CRC-64/NVME of a slot's bytes, per granule, per leaf and as a whole."""

    algorithm: str
    granule_bytes: int
    #: One per granule of the extent, in order.
    granules: tuple[int, ...]
    #: One per tensor leaf, in the order of `Layout.tensors`, over the leaf's bounding span.
    leaves: tuple[int, ...]
    #: Over topology hash, scalars and the extent: equal bytes under another meaning differ.
    whole: int


@dataclass(frozen=True)
class Fingerprint:
    """What must be equal on both ends for T0 to hold: facts, and the hash that compares them.

    Raises:
        InvalidInput: the hash is not that of the facts.
    """

    hash: bytes
    facts: Mapping[str, str] = field(compare=False)

    def __post_init__(self) -> None:
        facts = dict(sorted(self.facts.items()))
        if self.hash != _hash_of(facts):
            raise InvalidInput(
                "the fingerprint's hash is not that of its facts", field="fingerprint.hash"
            )
        object.__setattr__(self, "facts", MappingProxyType(facts))

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> Fingerprint:
        """The fingerprint of these facts, in any order."""
        return cls(hash=_hash_of(dict(sorted(facts.items()))), facts=facts)

    @property
    def presets(self) -> tuple[str, ...] | None:
        """The presets that the engine of this fingerprint serves; None where it does not say."""
        named = self.facts.get(PRESETS_FACT)
        return None if named is None else tuple(named.split())

    def serving(self, presets: Iterable[str]) -> Fingerprint:
        """The fingerprint of an engine that serves these presets."""
        return Fingerprint.of({**self.facts, PRESETS_FACT: " ".join(presets)})

    def differences(self, other: Fingerprint) -> tuple[str, ...]:
        """One line per unequal fact, sorted: "torch: '2.13.0' here, '2.12.1' there"."""
        lines = []
        for name in sorted(self.facts.keys() | other.facts.keys()):
            here, there = self.facts.get(name), other.facts.get(name)
            if here != there:
                lines.append(f"{name}: {_quoted(here)} here, {_quoted(there)} there")
        return tuple(lines)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a move is about: whose state, at which block, laid out how, equal to what.

    Raises:
        InvalidInput: the session id is no identifier, a number is negative or beyond 63 bits.
    """

    session_id: str
    epoch: int
    #: Index of the next block to generate.
    block_index: int
    layout: Layout
    fingerprint: Fingerprint
    determinism_tier: DeterminismTier
    #: None until somebody has read the bytes.
    digests: Digests | None = None

    def __post_init__(self) -> None:
        identifier(self.session_id, "manifest.session_id")
        whole(self.epoch, "manifest.epoch")
        whole(self.block_index, "manifest.block_index")
        enum_member(DeterminismTier, self.determinism_tier, "manifest.determinism_tier")


def _hash_of(facts: Mapping[str, str]) -> bytes:
    """SHA-256 over the sorted facts, each name and value behind its length."""
    out = bytearray(b"worldline.fingerprint\0")
    for name, value in facts.items():
        for text in (name, value):
            encoded = text.encode("utf-8")
            out += struct.pack("<Q", len(encoded)) + encoded
    return hashlib.sha256(out).digest()


def _quoted(value: str | None) -> str:
    return "absent" if value is None else repr(value)
