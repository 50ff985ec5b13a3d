"""Attach checks: whether a staged state is one that this engine's model can continue. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

from worldline.contract import Contract, DeterminismTier
from worldline.errors import Conflict, InvalidInput
from worldline.state.layout import Layout, TensorLeaf
from worldline.state.manifest import Fingerprint, Manifest
from worldline.state.remedies import mismatch

#: Scalar of the state tree that counts blocks, in every model of this engine.
BLOCK_INDEX_PATH = "block_index"


def check_manifest(
    manifest: Manifest,
    session_id: str,
    expected: Layout,
    fingerprint: Fingerprint,
    contract: Contract,
) -> None:
    """Refuse a staged state before anything of it is mapped.

    Raises:
        InvalidInput: another session's manifest, another layout (the first differing leaf is
            named), or a block index that its own state contradicts.
        Conflict: T0, and this engine's fingerprint is not the source's. A tier that was dropped
            for this move arrives as T1: what the contract would allow, nobody decides here.
    """
    if manifest.session_id != session_id:
        raise InvalidInput(
            f"the manifest is of session {manifest.session_id}, not {session_id}",
            field="manifest.session_id",
        )
    check_layout(manifest.layout, expected)
    counted = manifest.layout.scalar_values().get(BLOCK_INDEX_PATH, manifest.block_index)
    if counted != manifest.block_index:
        raise InvalidInput(
            f"the manifest is at block {manifest.block_index}, its state at {counted!r}",
            field="manifest.block_index",
            leaf=BLOCK_INDEX_PATH,
        )
    tiers = (manifest.determinism_tier, contract.determinism_tier)
    if DeterminismTier.T0_BITWISE in tiers and manifest.fingerprint != fingerprint:
        raise Conflict(
            f"a T0 session cannot continue here: {mismatch(manifest.fingerprint, fingerprint)}",
            reason="FINGERPRINT_MISMATCH",
        )


def check_layout(staged: Layout, expected: Layout) -> None:
    """The staged layout must be exactly the model's own.

    Raises:
        InvalidInput: it is not; `leaf` is the first that differs.
    """
    if staged.topology_hash == expected.topology_hash:
        return
    # What a leaf is comes before where it lies: one other shape shifts all leaves behind it.
    for described in (_meaning, _placement):
        for there, here in zip_longest(staged.tensors, expected.tensors):
            if _describe(described, there) != _describe(described, here):
                leaf = next(found.path for found in (there, here) if found is not None)
                raise InvalidInput(
                    f"leaf {leaf} of the staged state: {_describe(described, there)}; in this "
                    f"engine's model: {_describe(described, here)}",
                    field="manifest.layout",
                    leaf=leaf,
                )
    for there_path, here_path in zip_longest(
        (scalar.path for scalar in staged.scalars), (scalar.path for scalar in expected.scalars)
    ):
        if there_path != here_path:
            raise InvalidInput(
                f"scalar {there_path or here_path} differs from this engine's model",
                field="manifest.layout",
                leaf=there_path or here_path,
            )
    raise InvalidInput(
        "the staged state's containers are not those of this engine's model",
        field="manifest.layout",
    )


def _describe(described: Callable[[TensorLeaf], str], leaf: TensorLeaf | None) -> str:
    return "absent" if leaf is None else described(leaf)


def _meaning(leaf: TensorLeaf) -> str:
    return f"{leaf.path}, {leaf.dtype} {list(leaf.shape)}"


def _placement(leaf: TensorLeaf) -> str:
    return f"stride {list(leaf.stride)} at byte {leaf.offset_bytes} in region {leaf.region}"
