"""Caller: unary calls with a deadline, retried where the policy says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from worldline.errors import DeadlineExceeded, Unavailable, WorldlineError
from worldline.rpc.channel import call
from worldline.rpc.status import is_ours
from worldline.sdk.retry import RetryPolicy

#: Tells the server's logs which attempt of one logical call this is.
ATTEMPT_KEY = "worldline-attempt"
CLIENT_KEY = "worldline-client-id"

#: Told, each time before another attempt, how many seconds nobody has answered.
OnWaiting = Callable[[float], None]


class Caller:
    """Makes calls to placement for one client.

    A placement that has never answered is probably not there: it is tried for no longer than
    `connect_patience_s`. One that has answered is probably restarting: it has the whole deadline.
    """

    def __init__(
        self,
        client_id: str,
        timeout_s: float,
        policy: RetryPolicy | None = None,
        *,
        placement_address: str = "",
        connect_patience_s: float = 5.0,
        on_waiting: OnWaiting | None = None,
    ) -> None:
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.policy = policy or RetryPolicy()
        self._placement_address = placement_address
        self._connect_patience_s = connect_patience_s
        self._on_waiting = on_waiting or (lambda _waited_s: None)
        self._answered = False

    def metadata(self, attempt: int = 1) -> tuple[tuple[str, str], ...]:
        """What every call carries beside its trace context."""
        return ((CLIENT_KEY, self.client_id), (ATTEMPT_KEY, str(attempt)))

    async def once(
        self, method: Callable[..., Any], request: Any, *, timeout_s: float | None = None
    ) -> Any:
        """One attempt: for calls whose lost reply must be asked about and not repeated."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        return await call(method, request, timeout_s=limit_s, metadata=self.metadata())

    async def retried(
        self, method: Callable[..., Any], request: Any, *, timeout_s: float | None = None
    ) -> Any:
        """Attempts within one deadline over all of them.

        Only for calls that are idempotent, by nature or by the key in `request`.

        Raises:
            WorldlineError: the peer's own, or the last one when the deadline is near.
            Unavailable: nobody listens at placement's address.
            DeadlineExceeded: somebody does and says nothing.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        began_s = time.monotonic()
        deadline_s = began_s + limit_s
        attempt = 1
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise self._silent(limit_s)
            try:
                answer = await call(
                    method, request, timeout_s=left_s, metadata=self.metadata(attempt)
                )
            except WorldlineError as error:
                delay_s = self._delay_s(error, attempt, began_s, deadline_s)
            else:
                self._answered = True
                return answer
            await asyncio.sleep(delay_s)
            attempt += 1

    def _delay_s(
        self, error: WorldlineError, attempt: int, began_s: float, deadline_s: float
    ) -> float:
        """Until the next attempt; raises what is to be said where there is none."""
        now_s = time.monotonic()
        transport = transport_status(error)
        unreachable = transport is grpc.StatusCode.UNAVAILABLE
        self._answered = self._answered or transport is None
        if unreachable and not self._answered:
            deadline_s = min(deadline_s, began_s + self._connect_patience_s)
        delay_s = self.policy.delay_s(error, attempt, now_s, deadline_s)
        if delay_s is None and transport is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise self._silent(deadline_s - began_s) from error
        if delay_s is None:
            self.give_up(error)
        if unreachable:
            self._on_waiting(now_s - began_s)
        return delay_s

    def give_up(self, error: WorldlineError) -> NoReturn:
        """Raise `error`, or what it means where it is gRPC's own and nobody could be reached."""
        if transport_status(error) is not grpc.StatusCode.UNAVAILABLE:
            raise error
        raise Unavailable(
            f"no placement answers at {self._placement_address}; is `worldline up` running?"
        ) from error

    def _silent(self, limit_s: float) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"placement at {self._placement_address} did not answer within {limit_s:g} s"
        )


def transport_status(error: WorldlineError) -> grpc.StatusCode | None:
    """The status that gRPC itself made; None where a service of ours answered."""
    cause = error.__cause__
    if not isinstance(cause, grpc.aio.AioRpcError) or is_ours(cause):
        return None
    code: grpc.StatusCode = cause.code()
    return code
