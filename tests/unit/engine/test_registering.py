"""Registering: the same state in finer granules, at a boundary."""

from __future__ import annotations

import pytest

from tests.unit.engine.support import Harness, twin_digests
from worldline.errors import InvalidInput
from worldline.state.codec import manifest_from_proto
from worldline.state.difference import check_digests
from worldline.state.digest import GRANULE_BYTES
from worldline.state.manifest import Digests, Manifest
from worldline.v1 import engine_pb2


async def registered(source: Harness, granule_bytes: int = 0) -> tuple[Manifest, Digests]:
    request = engine_pb2.RegisterWorldRequest(session_id="s1", granule_bytes=granule_bytes)
    answer = await source.ask("RegisterWorld", request)
    manifest = manifest_from_proto(answer.manifest)
    return manifest, check_digests(manifest.layout, manifest.digests)


async def test_a_state_is_the_same_in_granules_of_any_size(source: Harness) -> None:
    await source.open()
    async with source.join(0) as player:
        await player.joined()
        await player.play(0, 1)
    manifest, usual = await registered(source)
    assert usual.granule_bytes == GRANULE_BYTES
    for granule_bytes in (4096, GRANULE_BYTES):
        _, digests = await registered(source, granule_bytes)
        assert digests.granule_bytes == granule_bytes
        assert len(digests.granules) == -(-manifest.layout.extent_bytes // granule_bytes)
        assert (digests.leaves, digests.whole) == (usual.leaves, usual.whole)
        assert digests.whole == twin_digests(1)[0][0]
    assert (await registered(source, GRANULE_BYTES))[1] == usual


@pytest.mark.parametrize("granule_bytes", [100, 64, 3 << 20])
async def test_a_granule_that_does_not_suit_is_named(granule_bytes: int, source: Harness) -> None:
    await source.open()
    with pytest.raises(InvalidInput) as caught:
        await registered(source, granule_bytes)
    assert caught.value.field == "granule_bytes"
