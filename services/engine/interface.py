"""Interface: whether an object has the members of `WorldModel`, and what exactly is missing.

A type checker sees none of a plug-in that is named in a setting. So the members are looked at when
it is loaded, before a session depends on them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from worldline.errors import InvalidInput
from worldline.fields import identifier

#: Names that clients can ask for are no longer (placement's bound).
PRESET_CHARS_MAX = 64
#: Methods of `WorldModel` and what they are called with.
_METHODS = {
    "warm": (),
    "state_spec": (),
    "initialise": ("state", "seed"),
    "block": ("state", "action", "steps"),
}
#: Of `OwnsState`: both or none.
_OWNING = {"lend": (), "take_back": ("state",)}
#: Of `SplitsNoise`.
_SPLITTING = {"split": ("state", "branch")}
_COUNTS = ("quanta_per_block", "denoising_steps")


def class_problems(target: object) -> tuple[str, ...]:
    """What a class or factory lacks, as far as can be seen before an object is made."""
    problems = [*_preset_problems(target)]
    if inspect.isclass(target):
        problems += _method_problems(target, has_self=True)
    if hasattr(target, "weights_digest"):
        # Asked before an object is made: a method of one will not do.
        problems += _method_problem(target, "weights_digest", ("weights_seed",), has_self=False)
    return tuple(problems)


def model_problems(model: object) -> tuple[str, ...]:
    """What an object lacks of `WorldModel`, member by member; empty where it has everything."""
    problems = [*_preset_problems(model), *_method_problems(model, has_self=False)]
    for name in _COUNTS:
        count = getattr(model, name, None)
        if type(count) is not int or count < 1:
            problems.append(f"{name} is {count!r}: must be a whole number of at least 1")
    return tuple(problems)


def preset_of(target: object) -> str:
    """The preset that a class, factory or object names.

    Raises:
        InvalidInput: it names none, or no name that a client could ask for.
    """
    preset = getattr(target, "preset", None)
    if type(preset) is not str:
        raise InvalidInput(
            f"preset is {preset!r}: must be a string on the class itself (`preset = "
            '"my-world"`), since it is advertised before an object is made',
            field="models",
        )
    if len(preset) > PRESET_CHARS_MAX:
        raise InvalidInput(
            f"preset has {len(preset)} characters: at most {PRESET_CHARS_MAX}", field="models"
        )
    return identifier(preset, "preset")


def _preset_problems(target: object) -> Iterator[str]:
    try:
        preset_of(target)
    except InvalidInput as error:
        yield error.message


def _method_problems(target: Any, *, has_self: bool) -> list[str]:
    wanted = dict(_METHODS)
    if any(hasattr(target, name) for name in _OWNING):
        wanted |= _OWNING
    if any(hasattr(target, name) for name in _SPLITTING):
        wanted |= _SPLITTING
    return [
        problem
        for name, arguments in wanted.items()
        for problem in _method_problem(target, name, arguments, has_self=has_self)
    ]


def _method_problem(
    target: Any, name: str, arguments: tuple[str, ...], *, has_self: bool
) -> list[str]:
    """Nothing, or the one thing that is wrong with a method."""
    wanted = f"{name}({', '.join(arguments)})"
    method = getattr(target, name, None)
    if method is None:
        return [f"{wanted} is missing"]
    if not callable(method):
        return [f"{name} is {type(method).__name__}, not a method {wanted}"]
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return []  # compiled, and says nothing of what it takes
    # A plain function that is looked up on its class takes the object first.
    kept = inspect.getattr_static(target, name, None)
    takes_self = has_self and not isinstance(kept, (staticmethod, classmethod))
    try:
        signature.bind(*([None] * (len(arguments) + takes_self)))
    except TypeError:
        return [f"{name}{signature} cannot be called as {wanted}"]
    return []
