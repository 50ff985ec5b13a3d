"""Runs on disk: what is written comes back, a torn line is dropped, the rest is a typed error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.recording.runs import LAYOUT, block, digests, header, run
from worldline.contract import Contract, DecodeTier, DeterminismTier, ServiceClass
from worldline.errors import InvalidInput, NotFound, WorldlineError
from worldline.recording.codec import (
    block_from_json,
    block_to_json,
    header_from_json,
    header_to_json,
)
from worldline.recording.directory import HEADER_NAME, LOG_NAME, RunWriter, read_run
from worldline.recording.run import Run, RunBlock, RunHeader
from worldline.sdk.actions import Action
from worldline.sdk.records import World
from worldline.state.manifest import Digests, Fingerprint
from worldline.state.scalar import encode

UINT64 = st.integers(0, (1 << 64) - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    TEXT,
    st.binary(max_size=20),
)
FINGERPRINTS = st.builds(Fingerprint.of, st.dictionaries(TEXT, TEXT, min_size=1, max_size=4))
MOTION = st.floats(-1, 1)


@st.composite
def some_digests(draw: st.DrawFn) -> Digests:
    known = digests()
    granules = tuple(draw(UINT64) for _ in known.granules)
    leaves = tuple(draw(UINT64) for _ in known.leaves)
    return Digests(known.algorithm, known.granule_bytes, granules, leaves, draw(UINT64))


@st.composite
def blocks(draw: st.DrawFn) -> RunBlock:
    full = draw(st.integers(1, 40))
    return RunBlock(
        block_index=draw(st.integers(0, (1 << 63) - 1)),
        epoch=draw(st.integers(1, (1 << 63) - 1)),
        action=Action(draw(st.integers(0, 15)), draw(MOTION), draw(MOTION)),
        steps=draw(st.integers(1, full)),
        steps_full=full,
        frames_digest=draw(UINT64),
        digests=draw(some_digests()),
        scalars={path: draw(SCALARS) for path in LAYOUT.scalar_values()},
        fingerprint=draw(st.none() | FINGERPRINTS),
    )


@st.composite
def headers(draw: st.DrawFn) -> RunHeader:
    contract = Contract(
        draw(st.sampled_from(ServiceClass)),
        draw(st.floats(1, 1e6)),
        decode_tier=draw(st.sampled_from(DecodeTier)),
        determinism_tier=draw(st.sampled_from(list(DeterminismTier)[:2])),
    )
    return header(
        epoch=draw(st.integers(1, 99)),
        world=World(draw(st.sampled_from(["tiny", "my-world"])), draw(UINT64)),
        contract=contract,
        fingerprint=draw(FINGERPRINTS),
        block_index=draw(st.integers(0, 1 << 40)),
        layout=LAYOUT.with_scalars({path: draw(SCALARS) for path in LAYOUT.scalar_values()}),
        digests=draw(some_digests()),
    )


def canonical(found: RunBlock) -> tuple[Any, ...]:
    """A NaN equals itself here, bit by bit, and -0.0 is not 0.0."""
    motion = encode(found.action.mouse_dx), encode(found.action.mouse_dy)
    scalars = {path: encode(value) for path, value in found.scalars.items()}
    return found.action.keyboard, motion, scalars, found.fingerprint, found.digests, found.steps


@settings(max_examples=40)
@given(blocks())
def test_a_block_is_one_line_and_comes_back(written: RunBlock) -> None:
    line = block_to_json(written)
    assert "\n" not in line
    read = block_from_json(line)
    assert canonical(read) == canonical(written)
    assert block_to_json(read) == line


@settings(max_examples=25)
@given(headers())
def test_a_header_comes_back(written: RunHeader) -> None:
    text = header_to_json(written)
    read = header_from_json(text)
    assert header_to_json(read) == text
    assert (read.world, read.contract, read.fingerprint, read.digests) == (
        written.world,
        written.contract,
        written.fingerprint,
        written.digests,
    )
    assert read.layout.topology_hash == written.layout.topology_hash


def write(path: Path, made: Run) -> None:
    with RunWriter(path, made.header) as writer:
        for each in made.blocks:
            writer.append(each)


def test_a_run_is_written_and_read(tmp_path: Path) -> None:
    made = run(5, start=3)
    write(tmp_path / "deep" / "run", made)
    assert read_run(tmp_path / "deep" / "run") == made
    assert sorted(each.name for each in (tmp_path / "deep" / "run").iterdir()) == [
        LOG_NAME,
        HEADER_NAME,
    ]


def test_every_finished_line_of_a_torn_log_is_read(tmp_path: Path) -> None:
    made = run(3)
    write(tmp_path / "run", made)
    log = tmp_path / "run" / LOG_NAME
    whole = log.read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == ord("\n")]
    for cut in {0, 1, *ends, *(end - 1 for end in ends), len(whole) // 2}:
        log.write_bytes(whole[:cut])
        read = read_run(tmp_path / "run")
        finished = [end for end in ends if end <= cut]
        assert read.blocks == made.blocks[: len(finished)]
        assert read.torn_bytes == cut - max(finished, default=0)


def test_a_writer_that_dies_leaves_what_it_appended(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", header())
    writer.append(block(0))
    assert read_run(tmp_path / "run").blocks == (block(0),)  # nothing was closed
    writer.close()
    writer.close()


@pytest.mark.parametrize("there", ["file", "full directory"])
def test_nothing_is_written_over(there: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    if there == "file":
        path.write_text("mine")
    else:
        write(path, run(1))
    with pytest.raises(InvalidInput, match="is there already") as caught:
        RunWriter(path, header())
    assert caught.value.field == "out"
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty", run(1))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="file/run") as caught:
        RunWriter(tmp_path / "file" / "run", header())
    assert caught.value.field == "out"


def test_blocks_are_appended_in_order(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", header()) as writer:
        with pytest.raises(InvalidInput, match="block 1 where block 0 comes next"):
            writer.append(block(1))
        writer.append(block(0))
    assert len(read_run(tmp_path / "run").blocks) == 1


def test_no_run_is_said_so(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(NotFound, match=r"run\.json") as caught:
            read_run(path)
        assert caught.value.reason == "RUN_UNKNOWN"
    write(tmp_path / "run", run(2))
    (tmp_path / "run" / LOG_NAME).unlink()  # died between the two
    assert read_run(tmp_path / "run").blocks == ()


#: What is done to a block's JSON, and the field that is named then.
SPOILT: list[tuple[list[Any], Any, str]] = [
    (["block_index"], "1", "block_index"),
    (["block_index"], True, "block_index"),
    (["block_index"], 7, "block_index"),
    (["epoch"], 0, "epoch"),
    (["action"], [], "action"),
    (["action", "keyboard"], 16, "action.keyboard"),
    (["action", "mouse_dx"], 2, "action.mouse_dx"),
    (["action", "mouse_dy"], 10**400, "action.mouse_dy"),
    (["steps"], 4, "steps"),
    (["frames_digest"], "0", "frames_digest"),
    (["frames_digest"], "+123456789abcdef", "frames_digest"),
    (["frames_digest"], 12, "frames_digest"),
    (["digests", "whole"], "x" * 16, "digests.whole"),
    (["digests", "granules"], [], "digests.granules"),
    (["digests", "leaves"], None, "digests.leaves"),
    (["digests", "algorithm"], "md5", "digests.algorithm"),
    (["digests", "granule_bytes"], 128, "digests.granules"),
    (["scalars", "scale"], 0.5, "scalars.scale"),
    (["scalars", "scale"], {"kind": "NOVEL", "payload": ""}, "scalars.scale"),
    (["scalars", "scale"], {"kind": "INT", "payload": "zz"}, "scalars.scale"),
    (["scalars", "scale"], {"kind": "INT", "payload": "0100"}, "scalar"),
    (["scalars"], {}, "scalars"),
    (["fingerprint"], {"hash": "AA==", "facts": {"a": "b"}}, "fingerprint.hash"),
    (["fingerprint"], {"surprise": 1}, "fingerprint"),
]


@pytest.mark.parametrize(("path", "value", "field"), SPOILT)
def test_a_bad_line_is_named_by_file_line_and_field(
    path: list[str], value: Any, field: str, tmp_path: Path
) -> None:
    write(tmp_path / "run", run(3))
    log = tmp_path / "run" / LOG_NAME
    lines = log.read_text().splitlines()
    found = json.loads(lines[1])
    inner = found
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    log.write_text("\n".join([lines[0], json.dumps(found), lines[2], ""]))
    with pytest.raises(InvalidInput) as caught:
        read_run(tmp_path / "run")
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{log}:2: ")


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 5_000, b"NaN"])
def test_a_line_that_is_no_block_is_named(line: bytes, tmp_path: Path) -> None:
    write(tmp_path / "run", run(1))
    log = tmp_path / "run" / LOG_NAME
    log.write_bytes(log.read_bytes() + line + b"\n")
    with pytest.raises(InvalidInput, match=r"blocks\.jsonl:2: "):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("format", "something.else", "not a run"),
        ("version", 2, "reads version 1"),
        ("layout", {}, "layout"),
        ("contract", {"service_class": "SERVICE_CLASS_NOVEL"}, "contract"),
        ("contract", {}, "contract"),
        ("world", {"preset": "tiny"}, "world.seed"),
        ("digests", None, "digests"),
    ],
)
def test_a_bad_header_is_named(name: str, value: Any, said: str, tmp_path: Path) -> None:
    write(tmp_path / "run", run(1))
    path = tmp_path / "run" / HEADER_NAME
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, name: value}))
    with pytest.raises(WorldlineError, match=said) as caught:
        read_run(tmp_path / "run")
    assert str(path) in caught.value.message


@settings(max_examples=40)
@given(data=st.data())
def test_whatever_is_in_a_line_it_is_a_block_or_a_typed_error(data: st.DataObject) -> None:
    line = block_to_json(block(0)).encode()
    start = data.draw(st.integers(0, len(line)))
    end = data.draw(st.integers(start, min(len(line), start + 8)))
    spoilt = line[:start] + data.draw(st.binary(max_size=8)) + line[end:]
    with contextlib.suppress(UnicodeDecodeError), contextlib.suppress(InvalidInput):
        block_from_json(spoilt.decode())


@settings(max_examples=40)
@given(data=st.data())
def test_whatever_is_in_a_header_it_is_one_or_a_typed_error(data: st.DataObject) -> None:
    text = header_to_json(header())
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    spoilt = text[:start] + data.draw(st.text('0123456789{}[]",:-eaA=', max_size=6)) + text[end:]
    with contextlib.suppress(WorldlineError):
        header_from_json(spoilt)
