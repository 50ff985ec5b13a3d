"""Fork: which branches a session gets, as records, and what an earlier request of a client made.

Pure. A branch's life is a session's: OPENING from the record on, then LIVE with all the others of
its fork, or CLOSED with all of them. Nothing of a fork is on record but its branches, so that a
crash of placement leaves what a crash in an opening leaves, and is undone by the same hand.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.placement.forked import BRANCH_NUMBER_MAX, ForkedFrom
from services.placement.records import SessionRecord, SessionState
from worldline.contract import Contract
from worldline.errors import Conflict, Unavailable
from worldline.fields import identifier, whole
from worldline.verdict import Verdict

#: Of one request. Each takes a slot of one device.
BRANCHES_MAX = 64
#: About what it takes to undo a fork that a restart left half done.
UNDONE_MS = 500


@dataclass(frozen=True, slots=True)
class ForkWish:
    """What a client asks for: `count` branches of one session.

    `contract` None: the session's own. `first_branch` None: placement numbers on.

    Raises:
        InvalidInput: none or too many, or numbers that nobody has.
    """

    session_id: str
    count: int
    contract: Contract | None
    same_noise: bool
    first_branch: int | None
    idempotency_key: str
    client_id: str

    def __post_init__(self) -> None:
        identifier(self.session_id, "session_id")
        whole(self.count, "count", at_least=1, at_most=BRANCHES_MAX)
        if self.first_branch is not None:
            highest = BRANCH_NUMBER_MAX + 1 - self.count
            whole(self.first_branch, "first_branch", at_most=highest)

    @property
    def keys(self) -> tuple[str, ...]:
        """One for each branch; a client's own has no space in it. None where it gave none."""
        if not self.idempotency_key:
            return ()
        return self.keys_possible[: self.count]

    @property
    def keys_possible(self) -> tuple[str, ...]:
        """Those of a request with this key, however many branches it asked for."""
        return tuple(f"{self.idempotency_key} {index}" for index in range(BRANCHES_MAX))


def check_parent(parent: SessionRecord) -> None:
    """Whether the session can have branches now.

    Raises:
        Conflict: it does not run, or is on its way somewhere.
    """
    if parent.state is SessionState.LIVE:
        return
    reasons = {
        SessionState.MOVING: "MOVE_IN_PROGRESS",
        SessionState.SUSPENDING: "SUSPEND_IN_PROGRESS",
        SessionState.RESUMING: "RESUME_IN_PROGRESS",
    }
    raise Conflict(
        f"session {parent.session_id} is {parent.state.value}: only a live session is forked",
        reason=reasons.get(parent.state, f"SESSION_{parent.state.name}"),
        field="session_id",
    )


def plan_branches(
    parent: SessionRecord, wish: ForkWish, names: Iterable[str], lowest: int
) -> tuple[SessionRecord, ...]:
    """The branches, by number, of those names; `lowest` is the first number that was never used.

    Raises:
        InvalidInput: the numbers have run out.
    """
    first = lowest if wish.first_branch is None else wish.first_branch
    keys = wish.keys or ("",) * wish.count
    return tuple(
        SessionRecord(
            session_id=name,
            owner=parent.owner,
            owner_incarnation=parent.owner_incarnation,
            node_id=parent.node_id,
            epoch=1,
            state=SessionState.OPENING,
            contract=wish.contract or parent.contract,
            world=parent.world,
            idempotency_key=key,
            forked_from=ForkedFrom(parent.session_id, parent.epoch, branch, wish.same_noise),
        )
        for branch, (name, key) in enumerate(zip(names, keys, strict=True), first)
    )


def same_request(earlier: tuple[SessionRecord, ...], wish: ForkWish) -> tuple[SessionRecord, ...]:
    """The branches that an earlier request with this key made, if it was this request.

    Raises:
        Unavailable: they are left from before a restart and are being undone.
        Conflict: the key was used for something else, or some of them were closed since.
    """
    if any(one.state is SessionState.OPENING for one in earlier):
        raise Unavailable(
            f"a fork of session {wish.session_id} is left from before a restart and is being "
            "undone; ask again",
            reason="SESSION_OPENING",
            field="idempotency_key",
            retry_after_ms=UNDONE_MS,
        )
    same = all(_asked_for(one, wish, index) for index, one in enumerate(earlier))
    if len(earlier) != wish.count or not same:
        raise Conflict(
            "the idempotency key was used for another fork, or branches of it were closed since",
            reason="IDEMPOTENCY_KEY_REUSED",
            field="idempotency_key",
        )
    return earlier


def _asked_for(branch: SessionRecord, wish: ForkWish, index: int) -> bool:
    forked = branch.forked_from
    if forked is None or wish.contract not in (None, branch.contract):
        return False
    number = forked.branch if wish.first_branch is None else wish.first_branch + index
    asked = ForkedFrom(wish.session_id, forked.epoch, number, wish.same_noise, forked.block_index)
    return forked == asked


def no_room_for(verdict: Verdict, index: int, wish: ForkWish) -> Verdict:
    """The verdict on a fork of which branch `index` found no room: the others had, so far."""
    if verdict.reason is None:
        return verdict
    branches = "branch" if wish.count == 1 else "branches"
    return Verdict.reject(
        verdict.reason,
        f"{wish.count} {branches} of session {wish.session_id}, room for {index}: "
        f"{verdict.explanation}",
        {**verdict.numbers, "branches": float(wish.count), "branches_with_room": float(index)},
        retry_after_ms=verdict.retry_after_ms,
    )
