"""Values of a move: the frozen pieces that events carry and the directory keeps."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.errors import WorldlineError, error_classes
from worldline.fields import identifier, whole


@dataclass(frozen=True, slots=True, order=True)
class SlotName:
    """One use of one slot; the generation grows at every allocation.

    Raises:
        InvalidInput: an empty node or a negative number; `field` is `slot.<name>`.
    """

    node_id: str
    slot_index: int
    generation: int

    def __post_init__(self) -> None:
        identifier(self.node_id, "slot.node_id")
        whole(self.slot_index, "slot.slot_index")
        whole(self.generation, "slot.generation", at_least=1)


@dataclass(frozen=True, slots=True)
class FailedWorld:
    """An engine's word that a world of its ended because a block failed."""

    session_id: str
    epoch: int
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a move stopped and why; `kind` is the class in `worldline.errors`."""

    kind: str
    reason: str
    message: str
    leaf: str = ""
    granule: int | None = None
    field: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception stands for; a foreign exception is our bug."""
        if isinstance(error, WorldlineError):
            return cls(
                kind=type(error).__name__,
                reason=error.reason,
                message=error.message,
                leaf=error.leaf or "",
                granule=error.granule,
                field=error.field or "",
            )
        text = f"{type(error).__name__}: {error}"
        return cls(kind="InvariantBroken", reason="INVARIANT_BROKEN", message=text)

    def error(self) -> WorldlineError:
        """The exception to raise towards the client."""
        classes = {cls.__name__: cls for cls in error_classes()}
        return classes.get(self.kind, WorldlineError)(
            self.message,
            reason=self.reason,
            field=self.field or None,
            leaf=self.leaf or None,
            granule=self.granule,
        )


@dataclass(frozen=True, slots=True)
class PushFigures:
    """What the wire did in one push."""

    wire_bytes: int
    chunks: int
    chunk_bytes: int
    window_chunks: int
    wire_ms: float
    verify_tail_ms: float
    verification: int
    lanes: tuple[str, ...] = ()
    #: Zeros that stayed behind.
    blank_bytes: int = 0

    @property
    def rate_bytes_per_s(self) -> float:
        """Verified bytes per second, as admission reckons: the wait for the last digest included.

        0 where nothing was timed.
        """
        total_ms = self.wire_ms + self.verify_tail_ms
        return self.wire_bytes / (total_ms / 1e3) if total_ms > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Ticket:
    """What placement goes by of admission's ticket; meanings as in `worldline.ticket`."""

    ticket_id: str
    valid_for_ms: int
    lease_ms: int
    #: 0: no deadline, and then nothing says how long the move may wait for its wire.
    horizon_ms: float = 0.0
    move_ms: float = 0.0
    wire_ms: float = 0.0

    @property
    def wait_ms(self) -> float:
        """How long the move may wait for its wire at most."""
        return max(0.0, self.horizon_ms - self.move_ms)

    @property
    def lasts_ms(self) -> float:
        """How long after its issue anything may happen under it: the lease begins twice."""
        return self.valid_for_ms + self.horizon_ms + 2 * self.lease_ms


@dataclass(frozen=True, slots=True)
class Party:
    """One end of a move, with the incarnations that held when it began.

    A process with another incarnation has not the old one's memory.
    """

    engine_id: str
    engine_incarnation: str
    node_id: str
    node_incarnation: str
