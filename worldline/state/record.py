"""Record: a dataclass instance as fields and back, without running any of its code.

Instances are rebuilt by setting fields, not by calling `__init__`: an initializer may compute,
allocate or default, and the state is already known. So a record is accepted only where its fields
are all there is to it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from worldline.errors import InvalidInput


def class_name_of(cls: type) -> str:
    """The name under which both ends know a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def field_values(record: object, path: str) -> list[tuple[str, object]]:
    """Names and values of all fields, in order.

    Raises:
        InvalidInput: the instance holds more than its fields, or less.
    """
    cls = type(record)
    names = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
    if cls.__new__ is not object.__new__:
        raise _refused(path, f"{class_name_of(cls)} derives from a builtin that holds state too")
    extra = sorted(_attributes(record) - set(names))
    if extra:
        raise _refused(path, f"{class_name_of(cls)} has attributes beside its fields: {extra}")
    missing = [name for name in names if not hasattr(record, name)]
    if missing:
        raise _refused(path, f"{class_name_of(cls)} lacks its fields {missing}")
    return [(name, getattr(record, name)) for name in names]


def registry(classes: Iterable[type]) -> Mapping[str, type]:
    """Classes by the name that layouts use.

    Raises:
        InvalidInput: one is no dataclass, or two have one name.
    """
    by_name: dict[str, type] = {}
    for cls in classes:
        name = class_name_of(cls)
        if not dataclasses.is_dataclass(cls):
            raise InvalidInput(f"{name} is no dataclass", field="classes")
        if by_name.setdefault(name, cls) is not cls:
            raise InvalidInput(f"two classes are named {name}", field="classes")
    return by_name


def rebuild(
    class_name: str, values: Mapping[str, object], known: Mapping[str, type], path: str
) -> object:
    """An instance of a known class with exactly these fields.

    Raises:
        InvalidInput: the class was not given, or has other fields here than at the source.
    """
    cls = known.get(class_name)
    if cls is None:
        raise _refused(path, f"class {class_name} was not among the classes given")
    names = [item.name for item in dataclasses.fields(cls)]
    if names != list(values):
        raise _refused(path, f"{class_name} has fields {names} here, the layout has {list(values)}")
    record: object = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(record, name, value)
    return record


def _attributes(record: object) -> set[str]:
    """Names of everything the instance can hold: its dict, and its classes' slots."""
    names = set(getattr(record, "__dict__", ()))
    for cls in type(record).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names.update((slots,) if isinstance(slots, str) else slots)
    return names - {"__dict__", "__weakref__"}


def _refused(path: str, message: str) -> InvalidInput:
    return InvalidInput(f"{path}: {message}", field="state", leaf=path)
