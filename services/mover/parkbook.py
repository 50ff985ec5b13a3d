"""Park book: which parked copies a mover has, whose they are, and how much room is left. Pure.

A parked copy is an object of its own and no slot: what it is for is that its slot is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from worldline.errors import (
    CapacityExhausted,
    Conflict,
    Fenced,
    InvariantBroken,
    NotFound,
    WorldlineError,
)
from worldline.park import ParkKind
from worldline.state.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Entry:
    """One copy. Without a manifest it is being made, unless it is `refused`."""

    park_id: str
    #: Empty where a damaged copy does not say whose it is.
    session_id: str
    kind: ParkKind
    size_bytes: int
    #: When it was begun or found, monotonic seconds.
    since: float
    manifest: Manifest | None = None
    #: Why nobody can resume from it.
    refused: WorldlineError | None = None
    #: How many are reading it now.
    readers: int = 0
    #: Given up; gone when its last reader is.
    dropped: bool = False


class ParkBook:
    """Every copy by name. `limits` are the most bytes of each kind, those being made included."""

    def __init__(self, limits: Mapping[ParkKind, int]) -> None:
        self._limits = limits
        self._entries: dict[str, Entry] = {}

    def begin(
        self, park_id: str, session_id: str, kind: ParkKind, size_bytes: int, now: float
    ) -> None:
        """A copy is being made, and its room is taken.

        Raises:
            Conflict: PARK_EXISTS, there is a copy of this name.
            CapacityExhausted: PARK_FULL, no room of its kind.
        """
        if park_id in self._entries:
            raise Conflict(
                f"there is a parked copy {park_id} already", reason="PARK_EXISTS", field="park_id"
            )
        used_bytes, limit_bytes = self.used_bytes(kind), self._limits[kind]
        if used_bytes + size_bytes > limit_bytes:
            raise CapacityExhausted(
                f"{size_bytes} bytes do not fit: parked states take {used_bytes} of "
                f"{limit_bytes} bytes ({kind.name.lower()}); resume or close a suspended session, "
                "or raise the limit of the mover",
                reason="PARK_FULL",
                field="kind",
            )
        self._entries[park_id] = Entry(park_id, session_id, kind, size_bytes, now)

    def finish(self, park_id: str, manifest: Manifest) -> None:
        """The copy is whole and verified; `manifest` has its digests."""
        entry = self._entries[park_id]
        if entry.manifest is not None or manifest.digests is None:
            raise InvariantBroken(f"parked copy {park_id} finished twice, or without digests")
        self._entries[park_id] = replace(entry, manifest=manifest)

    def adopt(self, entry: Entry) -> None:
        """A copy that was found at the start. It counts even beyond the limit."""
        self._entries[entry.park_id] = entry

    def find(self, park_id: str, session_id: str | None) -> Entry | None:
        """The session's copy of that name in whatever state; None where there is none.

        `session_id` None: whose it is does not matter.

        Raises:
            Fenced: it is another session's.
        """
        entry = self._entries.get(park_id)
        if entry is None or entry.dropped:
            return None
        if session_id is not None and entry.session_id not in ("", session_id):
            raise Fenced(
                f"parked copy {park_id} is not of session {session_id}",
                reason="PARKED_OF_OTHER_SESSION",
                field="session_id",
            )
        return entry

    def whole(self, park_id: str, session_id: str) -> Entry:
        """The session's copy of that name, if somebody can resume from it.

        Raises:
            NotFound: PARKED_UNKNOWN. Fenced: another session's. Conflict: it is being made.
            IntegrityError, VersionSkew: it was found damaged.
        """
        entry = self.find(park_id, session_id)
        if entry is None:
            raise NotFound(
                f"no parked copy {park_id} here", reason="PARKED_UNKNOWN", field="park_id"
            )
        if entry.refused is not None:
            raise entry.refused
        if entry.manifest is None:
            raise Conflict(
                f"parked copy {park_id} is being made", reason="PARK_UNFINISHED", field="park_id"
            )
        return entry

    def read(self, park_id: str) -> None:
        """Somebody reads the copy: it stays until `let_go`."""
        entry = self._entries[park_id]
        self._entries[park_id] = replace(entry, readers=entry.readers + 1)

    def let_go(self, park_id: str) -> bool:
        """Undo one `read`; whether the copy was dropped meanwhile and is to be freed now."""
        entry = self._entries[park_id]
        if entry.readers < 1:
            raise InvariantBroken(f"parked copy {park_id} was let go more often than read")
        self._entries[park_id] = replace(entry, readers=entry.readers - 1)
        return self._gone(park_id)

    def drop(self, park_id: str) -> bool:
        """Give a copy up; whether nobody reads it and it is to be freed now."""
        self._entries[park_id] = replace(self._entries[park_id], dropped=True)
        return self._gone(park_id)

    def _gone(self, park_id: str) -> bool:
        entry = self._entries[park_id]
        if not entry.dropped or entry.readers:
            return False
        del self._entries[park_id]
        return True

    def used_bytes(self, kind: ParkKind) -> int:
        """Bytes of that kind that are taken."""
        return sum(one.size_bytes for one in self._entries.values() if one.kind is kind)

    def entries(self) -> tuple[Entry, ...]:
        """Every copy, by name."""
        return tuple(self._entries[name] for name in sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
