"""Following: a move's stream of progress, joined again where it breaks, until its record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc

from worldline.errors import DeadlineExceeded, InvalidInput, Unavailable, WorldlineError
from worldline.rpc.channel import mapped_errors
from worldline.sdk.calls import Caller, transport_status
from worldline.sdk.move_record import MoveRecord, Progress, move_from_proto, progress_from_proto
from worldline.v1 import placement_pb2

OnProgress = Callable[[Progress], None]


async def follow(
    caller: Caller,
    method: Callable[..., Any],
    request: Any,
    what: str,
    timeout_s: float,
    on_progress: OnProgress | None,
) -> MoveRecord:
    """The record that a stream of `method` ends with, whatever the outcome.

    Only for requests that are idempotent: a stream that broke is asked for again. `what` is what
    the caller waits for, in words.

    Raises:
        DeadlineExceeded: it did not end within `timeout_s`; it goes on.
        WorldlineError: the outcome could not be learnt.
    """
    deadline_s = time.monotonic() + timeout_s
    attempt = 1
    while True:
        left_s = max(0.001, deadline_s - time.monotonic())
        call = method(request, timeout=left_s, metadata=caller.metadata(attempt))
        try:
            return await _read(call, on_progress)
        except WorldlineError as error:
            now_s = time.monotonic()
            delay_s = caller.policy.delay_s(error, attempt, now_s, deadline_s)
            if transport_status(error) is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise DeadlineExceeded(
                    f"{what} did not end within {timeout_s:g} s; it goes on, ask Client.moves"
                ) from error
            if delay_s is None:
                caller.give_up(error)
        await asyncio.sleep(delay_s)
        attempt += 1


async def _read(call: Any, on_progress: OnProgress | None) -> MoveRecord:
    async with mapped_errors():
        async for response in call:
            if response.WhichOneof("event") == "move":
                return move_from_proto(response.move)
            report(response.progress, on_progress)
    raise Unavailable("placement ended the stream without a record", reason="STREAM_ENDED")


def report(message: placement_pb2.MoveProgress, on_progress: OnProgress | None) -> None:
    """Tell whoever wants to know."""
    if on_progress is None:
        return
    try:
        progress = progress_from_proto(message)
    except InvalidInput:
        return  # a phase of a newer placement: not worth losing the move's answer for
    on_progress(progress)
