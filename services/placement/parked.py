"""Parked: what the directory keeps about a suspended session's state, and what movers report."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from services.placement.values import Party
from worldline.errors import InvalidInput
from worldline.fields import identifier, whole
from worldline.park import ParkKind, park_id
from worldline.state.manifest import Fingerprint


@dataclass(frozen=True, slots=True)
class Parked:
    """Where a suspended session's state rests, and what it must be when it comes back."""

    park_id: str
    kind: ParkKind
    node_id: str
    #: Of the mover that made the copy: memory ends with it.
    node_incarnation: str
    block_index: int
    #: Of the whole state.
    digest: int
    #: Of the engine that it was frozen at; None where an earlier version has parked it.
    fingerprint: Fingerprint | None = None

    def __post_init__(self) -> None:
        park_id(self.park_id, "parked.park_id")
        identifier(self.node_id, "parked.node_id")
        identifier(self.node_incarnation, "parked.node_incarnation")
        whole(self.block_index, "parked.block_index")

    def gone_with(self, incarnation: str | None) -> bool:
        """Whether it went with its mover, now that the node's mover is `incarnation`."""
        return self.kind is ParkKind.MEMORY and incarnation not in (None, self.node_incarnation)


def parked_to_json(parked: Parked | None) -> str | None:
    """The durable form."""
    if parked is None:
        return None
    fingerprint = parked.fingerprint
    facts = None if fingerprint is None else dict(fingerprint.facts)
    parts = {name: getattr(parked, name) for name in Parked.__slots__} | {"fingerprint": facts}
    return json.dumps(parts, sort_keys=True)


def parked_from_json(text: str | None) -> Parked | None:
    """Parse the durable form.

    Raises:
        InvalidInput, TypeError, ValueError: it is none.
    """
    if text is None:
        return None
    parts = json.loads(text)
    facts = parts.get("fingerprint")
    fingerprint = None if facts is None else Fingerprint.of(facts)
    return Parked(**parts | {"kind": ParkKind(parts["kind"]), "fingerprint": fingerprint})


@dataclass(frozen=True, slots=True)
class ParkedUse:
    """A parked copy as its mover reports it."""

    park_id: str
    age_ms: int


def find_parked_orphans(
    uses: tuple[ParkedUse, ...], named: AbstractSet[str], grace_ms: int
) -> tuple[str, ...]:
    """The copies that no session and no suspension under way names, sorted. Pure."""
    return tuple(
        sorted(use.park_id for use in uses if use.age_ms >= grace_ms and use.park_id not in named)
    )


class ParkedWatch:
    """Since when each copy has been nobody's; `now` in monotonic seconds."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_s = grace_ms / 1e3
        self._since: dict[tuple[str, str], float] = {}

    def ripe(self, node_id: str, found: tuple[str, ...], now: float) -> tuple[str, ...]:
        """Those of a node's copies, nobody's now, that have been so for the whole grace."""
        others = {key: at for key, at in self._since.items() if key[0] != node_id}
        here = {(node_id, name): self._since.get((node_id, name), now) for name in found}
        self._since = others | here
        return tuple(name for name in found if now - here[node_id, name] >= self._grace_s)


def parked_by(
    name: str,
    kind: ParkKind,
    party: Party,
    *,
    block_index: int,
    digest: int,
    fingerprint: Fingerprint | None,
) -> Parked:
    """The copy that this party's node has made."""
    return Parked(
        name, kind, party.node_id, party.node_incarnation, block_index, digest, fingerprint
    )


def kind_of(number: int) -> ParkKind:
    """The kind that a client asks for; memory where it does not say.

    Raises:
        InvalidInput: no such kind.
    """
    try:
        return ParkKind(number or ParkKind.MEMORY)
    except ValueError:
        raise InvalidInput(f"kind must be MEMORY or FILE, got {number}", field="kind") from None
