"""Map objects: what the user wants to see on the map, from options and files."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldline.cli import quantities
from worldline.cli.fabric import display_name
from worldline.cli.regimes import MapObject
from worldline.errors import InvalidInput

_FORM = "NAME=DIRTY@RATE, for example mg2=0.93GB/s@100Gb/s"
_ENTRY = ("name", "dirty_rate", "rate")


def parse_object(text: str, option: str) -> MapObject:
    """`NAME=DIRTY@RATE`.

    Raises:
        InvalidInput: it is not; `field` is `option`.
    """
    name, equals, values = text.rpartition("=")
    dirty_rate, at, rate = values.partition("@")
    if not equals or not at:
        raise InvalidInput(f"{option} takes {_FORM}; got {text!r}", field=option)
    return _object(name, dirty_rate, rate, option)


def read_objects(path: Path, option: str) -> tuple[MapObject, ...]:
    """The `objects` of a JSON or TOML file, each with a name, a dirty_rate and a rate.

    Raises:
        InvalidInput: the file cannot be read or says something else; `field` is `option`.
    """
    entries = _document(path, option).get("objects")
    if not isinstance(entries, list) or not entries:
        raise InvalidInput(
            f"{path} must have a list `objects` of {{name, dirty_rate, rate}}, for example "
            f'{{"objects": [{{"name": "mg2", "dirty_rate": "0.93GB/s", "rate": "100Gb/s"}}]}}',
            field=option,
        )
    return tuple(
        _entry(entry, f"{option} {path.name}, objects[{number}]")
        for number, entry in enumerate(entries)
    )


def check_distinct(objects: Sequence[MapObject], option: str) -> None:
    """Two points of one name cannot be told apart on the map.

    Raises:
        InvalidInput: a name comes twice.
    """
    names = [each.name for each in objects]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInput(f"{option} names {', '.join(twice)} twice", field=option)


def _document(path: Path, option: str) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", field=option) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{path} is no {'TOML' if path.suffix == '.toml' else 'JSON'}: {error}", field=option
        ) from None
    return document if isinstance(document, dict) else {}


def _entry(entry: object, where: str) -> MapObject:
    if not isinstance(entry, dict) or set(entry) != set(_ENTRY):
        raise InvalidInput(f"{where} must have exactly {', '.join(_ENTRY)}", field=where)
    for name in _ENTRY:
        if not isinstance(entry[name], str):
            raise InvalidInput(
                f'{where}: {name} must be text, a rate with its unit as in "0.93GB/s"; '
                f"got {entry[name]!r}",
                field=where,
            )
    return _object(entry["name"], entry["dirty_rate"], entry["rate"], where)


def _object(name: str, dirty_rate: str, rate: str, where: str) -> MapObject:
    return MapObject(
        display_name(name, where),
        quantities.dirty_rate(dirty_rate, where),
        quantities.rate(rate, where),
    )
