"""Receipts: every way in which what landed is not what was frozen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.placement.receipt import (
    Receipt,
    check_digests_equal,
    check_frozen,
    check_receipt,
)
from services.placement.values import SlotName
from tests.unit.placement.makers import EQUAL, entry, session
from worldline.contract import DeterminismTier
from worldline.state.layout import flat_layout
from worldline.state.manifest import CRC64NVME, Digests, Manifest

GRANULE = 64
LAYOUT = flat_layout("kv", 200)
DIGESTS = Digests(CRC64NVME, GRANULE, (1, 2, 3, 4), (5,), 6)
MANIFEST = Manifest("s", 1, 7, LAYOUT, EQUAL, DeterminismTier.T0_BITWISE)
SESSION = session(topology_hash=LAYOUT.topology_hash, extent_bytes=LAYOUT.extent_bytes)
MOVE = entry().move
RECEIPT = Receipt("m", SlotName("n2", 3, 9), LAYOUT.topology_hash, DIGESTS, LAYOUT.extent_bytes)


def test_an_equal_receipt_passes() -> None:
    assert check_receipt(RECEIPT, MOVE, MANIFEST, DIGESTS) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("move_id", "another"),
        ("slot", SlotName("n2", 3, 8)),  # the tenant before
        ("slot", SlotName("n2", 2, 9)),
        ("slot", SlotName("n1", 3, 9)),
        ("topology_hash", b"\2" * 32),
        ("received_bytes", LAYOUT.extent_bytes - 1),
        ("received_bytes", LAYOUT.extent_bytes + 1),
    ],
)
def test_a_receipt_of_something_else_is_refused(field: str, value: object) -> None:
    receipt = replace(RECEIPT, **{field: value})  # type: ignore[arg-type]
    failure = check_receipt(receipt, MOVE, MANIFEST, DIGESTS)
    assert failure is not None
    assert (failure.kind, failure.reason) == ("IntegrityError", "RECEIPT_MISMATCH")
    assert failure.field == f"receipt.{field}"


def test_differing_bytes_name_leaf_and_granule() -> None:
    flipped = replace(DIGESTS, granules=(1, 2, 9, 4), leaves=(8,), whole=7)
    failure = check_receipt(replace(RECEIPT, digests=flipped), MOVE, MANIFEST, DIGESTS)
    assert failure is not None
    assert (failure.kind, failure.reason) == ("IntegrityError", "DIGEST_MISMATCH")
    assert (failure.leaf, failure.granule) == ("kv", 2)


def test_equal_bytes_with_another_meaning_differ() -> None:
    failure = check_digests_equal(MANIFEST, DIGESTS, replace(DIGESTS, whole=7))
    assert failure is not None
    assert failure.granule is None


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": ""},
        {"algorithm": "crc32"},
        {"granules": ()},
        {"granules": (1, 2, 3)},
        {"leaves": ()},
        {"granule_bytes": 0},
        {"granule_bytes": 128, "granules": (1, 2)},
    ],
)
def test_a_digest_that_cannot_be_compared_is_never_equal(changes: dict[str, object]) -> None:
    unusable = replace(DIGESTS, **changes)  # type: ignore[arg-type]
    for source, target in ((DIGESTS, unusable), (unusable, DIGESTS)):
        failure = check_digests_equal(MANIFEST, source, target)
        assert failure is not None
        assert failure.reason == "DIGEST_UNUSABLE"


@pytest.mark.parametrize(
    ("field", "manifest"),
    [
        ("session_id", replace(MANIFEST, session_id="t")),
        ("epoch", replace(MANIFEST, epoch=2)),
        ("topology_hash", replace(MANIFEST, layout=flat_layout("other", 200))),
    ],
)
def test_a_frozen_manifest_of_something_else_is_refused(field: str, manifest: Manifest) -> None:
    assert check_frozen(MANIFEST, SlotName("n1", 0, 1), SESSION, MOVE) is None
    failure = check_frozen(manifest, SlotName("n1", 0, 1), SESSION, MOVE)
    assert failure is not None
    assert (failure.reason, failure.field) == ("MANIFEST_MISMATCH", f"manifest.{field}")


def test_a_state_frozen_in_another_slot_is_refused() -> None:
    failure = check_frozen(MANIFEST, SlotName("n1", 7, 1), SESSION, MOVE)
    assert failure is not None
    assert (failure.reason, failure.field) == ("MANIFEST_MISMATCH", "slot")
