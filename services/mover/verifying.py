"""Verifying: staged bytes are read once more where they rest, and compared with the source's.

Asked for beside the push, it waits for the landing and takes the digests that the source sealed:
the target's mover is the first to know that everything has landed, and a world stands still until
somebody has read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from services.mover.digesting import digest_at_rest
from services.mover.reservation import Reservation
from worldline.errors import InvariantBroken
from worldline.state.difference import Difference, check_digests, compare
from worldline.state.layout import Layout
from worldline.state.manifest import Digests, Manifest
from worldline.state.segment_digests import (
    SegmentDigests,
    compare_segment_digests,
    segment_digests,
)
from worldline.telemetry import instruments, span

if TYPE_CHECKING:
    from services.mover.runtime import MoverRuntime

#: What was read, and where it differs from what it should be.
Verified = tuple[Digests, Difference | None]


async def verify(
    runtime: MoverRuntime, reservation_id: str, manifest: Manifest, *, promote: bool
) -> Verified:
    """Read the staged bytes back and compare them with the source's digests, in the manifest.

    Where they are equal and `promote` is set, the staged state is the session's from then on.

    Raises:
        Conflict, NotFound: nothing staged, or never promotable.
        InvalidInput: another state's manifest, or digests that cannot be compared.
    """
    layout = manifest.layout
    reservation = runtime.reservations.verifiable(reservation_id, manifest)
    expected = check_digests(layout, manifest.digests, "manifest.digests")

    def differs(own: SegmentDigests) -> Difference | None:
        return compare(layout, expected, own.digests(layout))

    return await _read_back(runtime, reservation, layout, differs, promote)


async def verify_landing(
    runtime: MoverRuntime, reservation_id: str, manifest: Manifest, *, promote: bool
) -> Verified:
    """As `verify`, once everything has landed, with the digests that the source sealed.

    The caller bounds the wait, and so does the wire's lease: who misses it has no reservation.

    Raises:
        Conflict, NotFound, InvalidInput: as `verify`; or nothing will land any more.
    """
    while not runtime.reservations.staged(reservation_id):
        await runtime.landing.wait(reservation_id)
    layout = manifest.layout
    reservation = runtime.reservations.verifiable(reservation_id, manifest)
    sealed = reservation.sealed
    if sealed is None:
        raise InvariantBroken(f"reservation {reservation_id} landed without a seal")

    def differs(own: SegmentDigests) -> Difference | None:
        return compare_segment_digests(layout, sealed, own)

    return await _read_back(runtime, reservation, layout, differs, promote)


async def _read_back(
    runtime: MoverRuntime,
    reservation: Reservation,
    layout: Layout,
    differs: Callable[[SegmentDigests], Difference | None],
    promote: bool,
) -> Verified:
    reservation_id, slot = reservation.reservation_id, reservation.slot
    runtime.slots.pin(slot)
    try:
        with span("mover.verify", move_id=reservation.claims.move_id) as active:
            began_s = runtime.now()
            crcs = await digest_at_rest(layout, runtime.slot_memory(slot), runtime.pool)
            own = segment_digests(layout, crcs)
            difference = differs(own)
            active.set(equal=difference is None)
            instruments().verified((runtime.now() - began_s) * 1e3, "read_back")
        runtime.reservations.verified(reservation_id, equal=difference is None)
        if promote and difference is None:
            runtime.promote(reservation_id, slot)
        return own.digests(layout), difference
    finally:
        runtime.slots.unpin(slot, runtime.now())
