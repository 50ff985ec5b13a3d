"""Codec: a run's header and blocks as JSON, and back. Parsing is total: a value or InvalidInput.

Digests are sixteen hex digits, since readers of JSON lose the low bits of large integers. What the
protocol has a message for (layout, contract, fingerprint) is that message's JSON form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from worldline.contract import contract_from_proto, contract_to_proto
from worldline.errors import InvalidInput
from worldline.recording.run import RunBlock, RunHeader
from worldline.sdk.actions import Action
from worldline.sdk.records import World
from worldline.state.codec import (
    fingerprint_from_proto,
    fingerprint_to_proto,
    layout_from_proto,
    layout_to_proto,
)
from worldline.state.manifest import Digests
from worldline.state.scalar import Kind, ScalarValue, decode, encode
from worldline.v1 import contract_pb2, manifest_pb2

#: What the header says it is, and in which version. A later version may mean anything else.
FORMAT, VERSION = "worldline.run", 1
_HEX_DIGITS = 16
_DIGEST = re.compile(rf"[0-9a-f]{{{_HEX_DIGITS}}}")

MessageT = TypeVar("MessageT", bound=Message)


def header_to_json(header: RunHeader) -> str:
    """The header as one indented document."""
    return json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "session_id": header.session_id,
            "epoch": header.epoch,
            "world": {"preset": header.world.preset, "seed": header.world.seed},
            "block_index": header.block_index,
            "contract": _message_to_json(contract_to_proto(header.contract)),
            "fingerprint": _message_to_json(fingerprint_to_proto(header.fingerprint)),
            "digests": _digests_to_json(header.digests),
            "layout": _message_to_json(layout_to_proto(header.layout)),
        },
        indent=1,
    )


def header_from_json(text: str) -> RunHeader:
    """Parse.

    Raises:
        InvalidInput: no header of a run, another version, or a field at fault.
    """
    found = _Fields(_object(_loaded(text), "header"))
    if found.text("format") != FORMAT:
        raise InvalidInput(f"not a run: its format is not {FORMAT!r}", field="format")
    if found.whole("version") != VERSION:
        raise InvalidInput(
            f"a run of version {found.whole('version')}; this release reads version {VERSION}",
            field="version",
        )
    world = found.inner("world")
    layout = layout_from_proto(found.message("layout", manifest_pb2.Layout))
    return RunHeader(
        session_id=found.text("session_id"),
        epoch=found.whole("epoch"),
        world=World(world.text("preset"), world.whole("seed")),
        contract=contract_from_proto(found.message("contract", contract_pb2.Contract)),
        fingerprint=fingerprint_from_proto(found.message("fingerprint", manifest_pb2.Fingerprint)),
        block_index=found.whole("block_index"),
        layout=layout,
        digests=_digests_from_json(found.inner("digests")),
    )


def block_to_json(block: RunBlock) -> str:
    """The block as one line, without its end."""
    action = block.action
    found: dict[str, Any] = {
        "block_index": block.block_index,
        "epoch": block.epoch,
        "action": {
            "keyboard": action.keyboard,
            "mouse_dx": action.mouse_dx,
            "mouse_dy": action.mouse_dy,
        },
        "steps": block.steps,
        "steps_full": block.steps_full,
        "frames_digest": _hex(block.frames_digest),
        "digests": _digests_to_json(block.digests),
        "scalars": {path: _scalar_to_json(value) for path, value in block.scalars.items()},
    }
    if block.fingerprint is not None:
        found["fingerprint"] = _message_to_json(fingerprint_to_proto(block.fingerprint))
    return json.dumps(found, separators=(",", ":"))


def block_from_json(text: str) -> RunBlock:
    """Parse one line of the log.

    Raises:
        InvalidInput: with the field at fault.
    """
    found = _Fields(_object(_loaded(text), "block"))
    action, scalars = found.inner("action"), found.inner("scalars")
    moved = None
    if found.has("fingerprint"):
        moved = fingerprint_from_proto(found.message("fingerprint", manifest_pb2.Fingerprint))
    return RunBlock(
        block_index=found.whole("block_index"),
        epoch=found.whole("epoch"),
        action=Action(
            action.whole("keyboard"), action.number("mouse_dx"), action.number("mouse_dy")
        ),
        steps=found.whole("steps"),
        steps_full=found.whole("steps_full"),
        frames_digest=found.digest("frames_digest"),
        digests=_digests_from_json(found.inner("digests")),
        scalars={path: _scalar_from_json(scalars, path) for path in scalars.names},
        fingerprint=moved,
    )


class _Fields:
    """A JSON object whose fields are asked for by name and type. Each raises InvalidInput."""

    def __init__(self, found: Mapping[str, Any], within: str = "") -> None:
        self._found = found
        self._within = within

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._found)

    def name(self, field: str) -> str:
        return f"{self._within}.{field}" if self._within else field

    def has(self, field: str) -> bool:
        return field in self._found

    def any(self, field: str) -> Any:
        if field not in self._found:
            raise InvalidInput(f"{self.name(field)} is missing", field=self.name(field))
        return self._found[field]

    def text(self, field: str) -> str:
        value: str = self._typed(field, str, "text")
        return value

    def whole(self, field: str) -> int:
        value: int = self._typed(field, int, "a whole number")
        return value

    def number(self, field: str) -> float:
        value = self.any(field)
        if type(value) not in (int, float):
            raise self.wrong(field, "a number")
        try:
            return float(value)
        except OverflowError:
            raise self.wrong(field, "a number") from None

    def digest(self, field: str) -> int:
        return self._parsed(field, self.any(field))

    def digests(self, field: str) -> tuple[int, ...]:
        values = self._typed(field, list, "a list of digests")
        return tuple([self._parsed(field, value) for value in values])

    def inner(self, field: str) -> _Fields:
        return _Fields(_object(self.any(field), self.name(field)), self.name(field))

    def message(self, field: str, kind: type[MessageT]) -> MessageT:
        found = _object(self.any(field), self.name(field))
        try:
            return json_format.ParseDict(dict(found), kind())
        except (json_format.ParseError, DecodeError, ValueError, TypeError) as error:
            raise InvalidInput(
                f"{self.name(field)}: {error}".splitlines()[0], field=self.name(field)
            ) from None

    def wrong(self, field: str, wanted: str) -> InvalidInput:
        return InvalidInput(f"{self.name(field)} is not {wanted}", field=self.name(field))

    def _typed(self, field: str, kind: type, wanted: str) -> Any:
        value = self.any(field)
        if type(value) is not kind:  # a bool is no number here
            raise self.wrong(field, wanted)
        return value

    def _parsed(self, field: str, value: Any) -> int:
        if type(value) is not str or _DIGEST.fullmatch(value) is None:
            raise self.wrong(field, f"{_HEX_DIGITS} hex digits")
        return int(value, 16)


def _loaded(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"not JSON: {error}", reason="NOT_JSON") from None


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _object(found: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise InvalidInput(f"{field} is not an object", field=field)
    return found


def _message_to_json(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def _digests_to_json(digests: Digests) -> dict[str, Any]:
    return {
        "algorithm": digests.algorithm,
        "granule_bytes": digests.granule_bytes,
        "whole": _hex(digests.whole),
        "granules": [_hex(value) for value in digests.granules],
        "leaves": [_hex(value) for value in digests.leaves],
    }


def _digests_from_json(found: _Fields) -> Digests:
    return Digests(
        algorithm=found.text("algorithm"),
        granule_bytes=found.whole("granule_bytes"),
        granules=found.digests("granules"),
        leaves=found.digests("leaves"),
        whole=found.digest("whole"),
    )


def _scalar_to_json(value: ScalarValue) -> Any:
    """As itself where JSON has it exactly; else its kind and canonical bytes."""
    if value is None or type(value) in (bool, int, str):
        return value
    kind, payload = encode(value)
    return {"kind": kind.name, "payload": payload.hex()}


def _scalar_from_json(scalars: _Fields, path: str) -> ScalarValue:
    value = scalars.any(path)
    if value is None or type(value) in (bool, int, str):
        encode(value, leaf=path)  # one that no state has is refused here
        plain: ScalarValue = value
        return plain
    found = scalars.inner(path)
    try:
        kind, payload = Kind[found.text("kind")], bytes.fromhex(found.text("payload"))
    except (KeyError, ValueError):
        raise scalars.wrong(path, "a scalar") from None
    return decode(kind, payload, leaf=path)


def _hex(digest: int) -> str:
    return f"{digest:0{_HEX_DIGITS}x}"
