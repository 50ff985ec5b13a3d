"""Route: where to join next after a stream broke, and when to give up. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.errors import (
    CapacityExhausted,
    Conflict,
    Fenced,
    NotFound,
    TransferFailed,
    Unavailable,
    WorldlineError,
)
from worldline.sdk.retry import RetryPolicy

#: Conflicts that another engine would not cure.
_FINAL_REASONS = ("SUPERSEDED", "SESSION_CLOSED", "PLAYING")


@dataclass(frozen=True, slots=True)
class Join:
    """Join at `address` after `delay_s`."""

    address: str
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Resolve:
    """Ask placement, after `delay_s`, where the session lives."""

    delay_s: float = 0.0


class Route:
    """Decides over joins, for as long as one trouble lasts.

    A trouble begins with the first failure after a delivered block and may last `patience_s`.
    """

    def __init__(self, address: str, patience_s: float, policy: RetryPolicy | None = None) -> None:
        self.address = address
        self._patience_s = patience_s
        self._policy = policy or RetryPolicy()
        self._epoch_wanted = 0
        self._deadline_s: float | None = None
        self._attempt = 0
        self._same_engine_tried = False

    def progressed(self) -> None:
        """A block was delivered: the trouble is over."""
        self._deadline_s = None
        self._attempt = 0
        self._same_engine_tried = False

    def begin(self, now_s: float) -> Join | Resolve:
        """The first step of a play: the engine last known, or placement where none is."""
        self._note_trouble(now_s)
        return Join(self.address) if self.address else Resolve()

    def moved(self, epoch: int, now_s: float) -> Resolve:
        """The stream ended because the world changed hands, to `epoch`."""
        self._note_trouble(now_s)
        self._epoch_wanted = max(self._epoch_wanted, epoch)
        self._same_engine_tried = True
        return Resolve()

    def broken(self, error: WorldlineError, now_s: float) -> Join | Resolve:
        """The stream or the join failed with `error`.

        The same engine is tried first, once: most breaks are a dropped connection, and its outbox
        is there. After that placement is asked, with growing delays.

        Raises:
            WorldlineError: `error` itself, where no join can cure it or patience is over.
        """
        self._note_trouble(now_s)
        if not self._curable(error):
            raise error
        if isinstance(error, CapacityExhausted):
            return Join(self.address, self._delay_s(error, now_s))
        if isinstance(error, Unavailable | TransferFailed) and not self._same_engine_tried:
            self._same_engine_tried = True
            if self.address:
                return Join(self.address)
        return Resolve(self._delay_s(error, now_s))

    def resolved(self, epoch: int, address: str, state: str, now_s: float) -> Join | Resolve:
        """Placement answered.

        Raises:
            Conflict: the session was closed, or is suspended.
            Unavailable: patience is over and the session still has no engine.
        """
        if state == "closed":
            raise Conflict("the session was closed", reason="SESSION_CLOSED", field="session_id")
        if state == "suspended":
            raise Conflict(
                "the session is suspended; resume it (`Session.resume`, or `worldline resume`) and "
                "play on",
                reason="SESSION_SUSPENDED",
                field="session_id",
            )
        self._note_trouble(now_s)
        if state in ("lost", "resuming") or not address or epoch < self._epoch_wanted:
            error = Unavailable(
                f"the session is {state} and has no engine to join", reason="SESSION_UNAVAILABLE"
            )
            return Resolve(self._delay_s(error, now_s))
        self.address = address
        # A new engine deserves a second try as the old one did.
        self._same_engine_tried = False
        return Join(address)

    def left_s(self, now_s: float) -> float:
        """Seconds of patience left; all of it where there is no trouble."""
        return self._patience_s if self._deadline_s is None else self._deadline_s - now_s

    def _note_trouble(self, now_s: float) -> None:
        if self._deadline_s is None:
            self._deadline_s = now_s + self._patience_s

    def _delay_s(self, error: WorldlineError, now_s: float) -> float:
        self._attempt += 1
        delay_s = self._policy.backoff_s(self._attempt)
        if error.retry_after_ms is not None:
            delay_s = error.retry_after_ms / 1e3
        if self.left_s(now_s) <= delay_s:
            raise error
        return delay_s

    @staticmethod
    def _curable(error: WorldlineError) -> bool:
        if error.reason in _FINAL_REASONS:
            return False
        return isinstance(
            error, Unavailable | TransferFailed | CapacityExhausted | NotFound | Fenced | Conflict
        )
