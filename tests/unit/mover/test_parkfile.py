"""Park files: the sidecar's codec under every kind of damage, and the directory across crashes."""

from __future__ import annotations

import fcntl
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.mover.crossing import scratch
from services.mover.parkdir import ParkDirectory
from services.mover.parkfile import (
    BLOCK_BYTES,
    Sidecar,
    StateFile,
    decode_sidecar,
    encode_sidecar,
    padded_bytes,
)
from tests.unit.mover.cluster import layout_of
from tests.unit.state.strategies import trees
from worldline.contract import DeterminismTier
from worldline.errors import (
    IntegrityError,
    NotFound,
    Unavailable,
    VersionSkew,
    WorldlineError,
)
from worldline.state.digest import digest_slot
from worldline.state.layout import Layout
from worldline.state.manifest import Fingerprint, Manifest
from worldline.state.tree import plan


def sidecar_of(layout: Layout, data: bytes, name: str = "park-1", node: str = "a") -> Sidecar:
    manifest = Manifest(
        session_id="session-1",
        epoch=4,
        block_index=17,
        layout=layout,
        fingerprint=Fingerprint.of({"torch": "2.13"}),
        determinism_tier=DeterminismTier.T0_BITWISE,
        digests=digest_slot(layout, memoryview(data)),
    )
    return Sidecar(name, node, padded_bytes(layout.extent_bytes), manifest)


SMALL = layout_of((5_000, 3_001))
DATA = random.Random(3).randbytes(SMALL.extent_bytes)
ENCODED = encode_sidecar(sidecar_of(SMALL, DATA))


@given(tree=trees(), seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_a_sidecar_survives_its_encoding(tree: object, seed: int) -> None:
    layout = plan(tree)
    sidecar = sidecar_of(layout, random.Random(seed).randbytes(layout.extent_bytes))
    encoded = encode_sidecar(sidecar)
    decoded = decode_sidecar(encoded)
    # Compared by their bytes: a NaN among the scalars is not equal to itself.
    assert encode_sidecar(decoded) == encoded
    assert decoded.manifest.digests == sidecar.manifest.digests
    assert decoded.manifest.layout.topology_hash == layout.topology_hash


@given(at=st.integers(0, len(ENCODED) * 8 - 1))
@settings(max_examples=150)
def test_no_bit_of_a_sidecar_may_change(at: int) -> None:
    changed = bytearray(ENCODED)
    changed[at // 8] ^= 1 << (at % 8)
    with pytest.raises(IntegrityError) as caught:
        decode_sidecar(bytes(changed))
    assert caught.value.reason == "PARKED_FILE_DAMAGED"


@given(length=st.integers(0, len(ENCODED) - 1))
def test_a_sidecar_is_whole_or_nothing(length: int) -> None:
    with pytest.raises(IntegrityError):
        decode_sidecar(ENCODED[:length])
    with pytest.raises(IntegrityError):
        decode_sidecar(ENCODED + ENCODED[:length] + b"x")


def test_another_version_is_said_to_be_one() -> None:
    import hashlib

    body = b"worldline.park\0\2" + ENCODED[16:-32]
    with pytest.raises(VersionSkew):
        decode_sidecar(body + hashlib.sha256(body).digest())


def written(directory: ParkDirectory, name: str = "park-1", node: str = "a") -> None:
    """A whole copy of DATA."""
    file = directory.create(name)
    with scratch(padded_bytes(len(DATA))) as buffer:
        buffer[: len(DATA)] = DATA
        file.write(0, buffer)
    file.sync()
    file.close()
    directory.finish(sidecar_of(SMALL, DATA, name, node))


@pytest.fixture
def directory(tmp_path: Path) -> ParkDirectory:
    made = ParkDirectory(tmp_path, "a")
    assert made.open() == []
    return made


def read_all(file: StateFile) -> bytes:
    with scratch(padded_bytes(len(DATA))) as buffer:
        file.read(0, buffer)
        return bytes(buffer[: len(DATA)])


def test_a_restarted_mover_finds_what_was_whole(directory: ParkDirectory, tmp_path: Path) -> None:
    written(directory)
    again = ParkDirectory(tmp_path, "a")
    (found,) = again.open()
    assert found.refused is None
    assert found.sidecar == sidecar_of(SMALL, DATA)
    sidecar, file = again.load("park-1")
    assert read_all(file) == DATA
    assert file.direct == again.direct
    file.close()
    assert sidecar.manifest.digests == digest_slot(SMALL, memoryview(DATA))


def test_what_a_crash_left_is_cleared_away(directory: ParkDirectory, tmp_path: Path) -> None:
    written(directory)
    file = directory.create("park-2")  # killed while it wrote
    file.close()
    (directory.path / "park-3.tmp").mkdir()  # killed while it removed
    (directory.path / "park-3.tmp" / "state").write_bytes(b"half")
    again = ParkDirectory(tmp_path, "a")
    assert [found.park_id for found in again.open()] == ["park-1"]
    assert sorted(each.name for each in again.path.iterdir()) == ["park-1"]


def damage_truncated(folder: Path) -> None:
    with (folder / "state").open("r+b") as file:
        file.truncate(BLOCK_BYTES)


def damage_extended(folder: Path) -> None:
    with (folder / "state").open("ab") as file:
        file.write(bytes(BLOCK_BYTES))


def damage_renamed(folder: Path) -> None:
    folder.rename(folder.parent / "park-9")


def damage_manifest(folder: Path) -> None:
    data = bytearray((folder / "manifest").read_bytes())
    data[len(data) // 2] ^= 4
    (folder / "manifest").write_bytes(data)


def damage_no_state(folder: Path) -> None:
    (folder / "state").unlink()


def damage_no_manifest(folder: Path) -> None:
    (folder / "manifest").unlink()


@pytest.mark.parametrize(
    ("damage", "name", "reason"),
    [
        (damage_truncated, "park-1", "PARKED_FILE_TRUNCATED"),
        (damage_extended, "park-1", "PARKED_FILE_TRUNCATED"),
        (damage_renamed, "park-9", "PARKED_FILE_RENAMED"),
        (damage_manifest, "park-1", "PARKED_FILE_DAMAGED"),
        (damage_no_state, "park-1", "PARKED_FILE_MISSING"),
        (damage_no_manifest, "park-1", "PARKED_FILE_MISSING"),
    ],
)
def test_damage_is_refused_and_kept_for_inspection(
    directory: ParkDirectory, tmp_path: Path, damage, name: str, reason: str
) -> None:
    written(directory)
    damage(directory.path / "park-1")
    again = ParkDirectory(tmp_path, "a")
    (found,) = again.open()
    assert found.park_id == name
    assert found.sidecar is None
    assert found.refused is not None
    assert found.refused.reason == reason
    with pytest.raises(IntegrityError) as caught:
        again.load(name)
    assert caught.value.reason == reason
    assert (again.path / name).exists()


def test_two_copies_whose_states_were_exchanged(directory: ParkDirectory) -> None:
    """Nothing in a name or a length tells: the digests do, when the bytes are read."""
    written(directory)
    file = directory.create("park-2")
    other = bytes(reversed(DATA))
    with scratch(padded_bytes(len(other))) as buffer:
        buffer[: len(other)] = other
        file.write(0, buffer)
    file.close()
    directory.finish(sidecar_of(SMALL, other, "park-2"))
    one, two = directory.path / "park-1/state", directory.path / "park-2/state"
    one.rename(directory.path / "held")
    two.rename(one)
    (directory.path / "held").rename(two)
    sidecar, file = directory.load("park-1")
    assert digest_slot(SMALL, memoryview(read_all(file))) != sidecar.manifest.digests
    file.close()


def test_another_nodes_copies_are_not_seen(directory: ParkDirectory, tmp_path: Path) -> None:
    written(directory)
    other = ParkDirectory(tmp_path, "b/../a")
    assert other.open() == []
    assert other.path.parent == tmp_path
    with pytest.raises(NotFound):
        other.load("park-1")


def test_a_copy_carried_to_another_node_is_refused(
    directory: ParkDirectory, tmp_path: Path
) -> None:
    written(directory)
    other = ParkDirectory(tmp_path, "b")
    other.open()
    (directory.path / "park-1").rename(other.path / "park-1")
    (found,) = other.open()
    assert found.refused is not None
    assert found.refused.reason == "PARKED_FILE_RENAMED"


def test_dropping_leaves_nothing_and_may_be_repeated(directory: ParkDirectory) -> None:
    written(directory)
    for _ in range(2):
        directory.drop("park-1")
    assert list(directory.path.iterdir()) == []


def test_abandoning_leaves_nothing(directory: ParkDirectory) -> None:
    directory.create("park-1").close()
    directory.abandon("park-1")
    directory.abandon("park-1")
    assert list(directory.path.iterdir()) == []


def test_a_name_that_leaves_the_directory_is_no_name(directory: ParkDirectory) -> None:
    for name in ("../up", ".", "a/b", "", "x" * 200):
        with pytest.raises(WorldlineError):
            directory.create(name)


def test_a_directory_that_cannot_be_made_names_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable) as caught:
        ParkDirectory(tmp_path / "file", "a").open()
    assert caught.value.field == "park_dir"


def test_direct_io_is_used_where_there_is_any(directory: ParkDirectory, tmp_path: Path) -> None:
    """Whether there is any is asked of the file system itself, and of no code of the mover's."""
    try:
        os.close(os.open(tmp_path / "asked", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError as error:
        pytest.skip(f"{tmp_path} takes no direct I/O: {error}")
    assert directory.direct
    made = directory.create("park-2")
    written(directory)
    _, found = directory.load("park-1")
    for file in (made, found):
        assert fcntl.fcntl(file._descriptor, fcntl.F_GETFL) & os.O_DIRECT
        file.close()


def test_without_direct_io_it_says_so_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: StateFile, *args: object, direct: bool, **kwargs: object) -> None:
        if direct:
            raise IntegrityError("EINVAL")
        plain(self, *args, direct=direct, **kwargs)  # type: ignore[arg-type]

    plain = StateFile.__init__
    monkeypatch.setattr(StateFile, "__init__", refuse)
    directory = ParkDirectory(tmp_path, "a")
    directory.open()
    assert not directory.direct
    written(directory)
    _, file = directory.load("park-1")
    assert read_all(file) == DATA
    file.close()


def test_what_nobody_could_read_again_is_never_whole(directory: ParkDirectory) -> None:
    sidecar = sidecar_of(SMALL, DATA)
    bare = replace(sidecar, manifest=replace(sidecar.manifest, digests=None))
    with pytest.raises(IntegrityError):
        decode_sidecar(encode_sidecar(bare))
    directory.create("park-1").close()
    with pytest.raises(IntegrityError):
        directory.finish(bare)
    directory.abandon("park-1")
    assert list(directory.path.iterdir()) == []
