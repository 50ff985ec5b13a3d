"""Receipt: whether what the target holds is what the source froze. Pure.

Every check fails closed: what is absent, truncated or of another kind is a difference.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.placement.move import Move
from services.placement.records import SessionRecord
from services.placement.values import Failure, SlotName
from worldline.errors import InvalidInput
from worldline.state.difference import compare
from worldline.state.manifest import Digests, Manifest


@dataclass(frozen=True, slots=True)
class Receipt:
    """The target's statement of what it holds."""

    move_id: str
    slot: SlotName
    topology_hash: bytes
    digests: Digests
    received_bytes: int


def check_frozen(
    manifest: Manifest, slot: SlotName, session: SessionRecord, move: Move
) -> Failure | None:
    """Whether what is frozen is this session, in this epoch, in the slot and layout admitted."""
    if slot != session.slot:
        return Failure(
            kind="Conflict",
            reason="MANIFEST_MISMATCH",
            message=f"the frozen state is in {slot}, the push was armed for {session.slot}",
            field="slot",
        )
    wrong: tuple[tuple[str, object, object], ...] = (
        ("session_id", manifest.session_id, session.session_id),
        ("epoch", manifest.epoch, move.source_epoch),
        ("topology_hash", manifest.layout.topology_hash.hex(), session.topology_hash.hex()),
        ("extent_bytes", manifest.layout.extent_bytes, session.extent_bytes),
    )
    for name, actual, wanted in wrong:
        if actual != wanted:
            return Failure(
                kind="Conflict",
                reason="MANIFEST_MISMATCH",
                message=f"the frozen manifest's {name} is {actual}, the session's is {wanted}",
                field=f"manifest.{name}",
            )
    return None


def check_receipt(
    receipt: Receipt, move: Move, manifest: Manifest, source: Digests
) -> Failure | None:
    """Whether the receipt names this move, this slot and generation, these bytes, this meaning.

    `source` are the source's own digests over the frozen slot, `manifest` the frozen one.
    """
    layout = manifest.layout
    wrong: tuple[tuple[str, object, object], ...] = (
        ("move_id", receipt.move_id, move.move_id),
        ("slot", receipt.slot, move.target_slot),
        ("topology_hash", receipt.topology_hash.hex(), layout.topology_hash.hex()),
        ("received_bytes", receipt.received_bytes, layout.extent_bytes),
    )
    for name, actual, wanted in wrong:
        if actual != wanted:
            return Failure(
                kind="IntegrityError",
                reason="RECEIPT_MISMATCH",
                message=f"the receipt's {name} is {actual}, wanted {wanted}",
                field=f"receipt.{name}",
            )
    return check_digests_equal(manifest, source, receipt.digests)


def check_digests_equal(manifest: Manifest, source: Digests, target: Digests) -> Failure | None:
    """Whether two digests of one manifest are equal; the first differing leaf and granule."""
    try:
        difference = compare(manifest.layout, source, target)
    except InvalidInput as error:
        return Failure(
            kind="IntegrityError",
            reason="DIGEST_UNUSABLE",
            message=error.message,
            field=error.field or "",
        )
    if difference is None:
        return None
    return Failure(
        kind="IntegrityError",
        reason="DIGEST_MISMATCH",
        message=difference.message,
        leaf=difference.leaf or "",
        granule=difference.granule,
    )
