"""Plug-in: a model of somebody else's package, served beside the built-in presets.

Named `module:attribute`, for example `my_pkg.worlds:MyWorld`. The attribute is a class, or any
callable, that makes a `WorldModel` of a weights seed and a torch device. On it, not on the object:

- `preset`: the name that clients open it by. It is advertised before an object is made.
- `code_packages`, optional: other top-level packages whose code decides frames. The plug-in's own
  is in the fingerprint anyway.
- `weights_digest(weights_seed)`, optional: a name for the weights that are read from files. Where
  there is none, weights follow from code and seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from services.engine.interface import class_problems, model_problems, preset_of
from services.engine.plugincode import packages_digest
from services.engine.pluginname import FIELD, plugin_names, refused
from services.engine.world import WorldModel
from worldline.errors import WorldlineError


@dataclass(frozen=True)
class Plugin:
    """A loaded plug-in. No object of it has been made yet."""

    #: `module:attribute`, as it was named.
    name: str
    preset: str
    make: Callable[[int, torch.device], object]
    #: SHA-256 over its packages' files.
    code: str
    #: Packages beside its own whose code is in there too.
    code_packages: tuple[str, ...]
    #: Names the weights of a seed; None where they follow from code and seed.
    names_weights: Callable[[int], object] | None

    def weights(self, weights_seed: int) -> str:
        """What names the weights beside code and seed; empty where nothing does.

        Raises:
            InvalidInput: the plug-in failed to say.
        """
        if self.names_weights is None:
            return ""
        try:
            said = self.names_weights(weights_seed)
        except Exception as error:
            raise refused(
                "MODEL_WEIGHTS_UNKNOWN",
                f"{self.name}.weights_digest({weights_seed}) raised "
                f"{type(error).__name__}: {error}",
            ) from error
        if type(said) is not str or not said:
            raise refused(
                "MODEL_WEIGHTS_UNKNOWN",
                f"{self.name}.weights_digest({weights_seed}) returned {said!r}: must be a string "
                "that names the weights",
            )
        return said

    def build(self, weights_seed: int, device: torch.device) -> WorldModel:
        """The model, complete.

        Raises:
            InvalidInput: its constructor failed, or the object lacks a member; says which.
        """
        try:
            model: Any = self.make(weights_seed, device)
        except WorldlineError:
            raise
        except Exception as error:
            raise refused(
                "MODEL_BUILD_FAILED",
                f"{self.name}(weights_seed, device) raised {type(error).__name__}: {error}",
            ) from error
        problems = model_problems(model)
        if not problems and model.preset != self.preset:
            problems = (f"the object's preset is {model.preset!r}, its class's {self.preset!r}",)
        _refuse_incomplete(self.name, problems)
        complete: WorldModel = model
        return complete


def load_plugins(names: Iterable[str], taken: Iterable[str]) -> dict[str, Plugin]:
    """The plug-ins of these names, by preset. `taken` are the presets that exist already.

    Raises:
        InvalidInput: as `load_plugin`, or two models serve one preset.
    """
    plugins: dict[str, Plugin] = {}
    known = dict.fromkeys(taken, "a built-in model")
    for name in names:
        plugin = load_plugin(name)
        if plugin.preset in known:
            raise refused(
                "MODEL_PRESET_TAKEN",
                f"{name} serves preset {plugin.preset}, and so does {known[plugin.preset]}: give "
                "it another name",
            )
        known[plugin.preset] = name
        plugins[plugin.preset] = plugin
    return plugins


def load_plugin(name: str) -> Plugin:
    """Import a plug-in and look at what can be seen before an object is made.

    Raises:
        InvalidInput: the name, the import, the attribute or a member of it is at fault; the
            message names module, attribute and member, the reason which of them.
    """
    (name,) = plugin_names(name)
    module, _, attribute = name.partition(":")
    target = _imported(module, attribute)
    if not callable(target):
        raise refused(
            "MODEL_INCOMPLETE",
            f"{name} is {type(target).__name__}: must be a class, or a function, that makes a "
            "model of (weights_seed, device)",
        )
    _refuse_incomplete(name, class_problems(target))
    others = tuple(getattr(target, "code_packages", ()))
    return Plugin(
        name=name,
        preset=preset_of(target),
        make=target,
        code=packages_digest((module, *others), FIELD),
        code_packages=others,
        names_weights=getattr(target, "weights_digest", None),
    )


def _imported(module: str, attribute: str) -> Any:
    try:
        target: Any = import_module(module)
    except ModuleNotFoundError as error:
        raise refused(
            "MODEL_IMPORT_FAILED",
            f"module {module} cannot be imported: {error}; install its package where the engine "
            "runs, or add its directory to PYTHONPATH",
        ) from error
    except Exception as error:
        raise refused(
            "MODEL_IMPORT_FAILED",
            f"importing module {module} raised {type(error).__name__}: {error}",
        ) from error
    for name in attribute.split("."):
        if not hasattr(target, name):
            raise refused(
                "MODEL_ATTRIBUTE_MISSING",
                f"module {module} has no attribute {attribute}; it has: {_shown(target)}",
            )
        target = getattr(target, name)
    return target


def _shown(target: object) -> str:
    """A few of the names that could have been meant."""
    found = [name for name, value in vars(target).items() if isinstance(value, type)]
    return ", ".join(sorted(name for name in found if not name.startswith("_"))[:8]) or "no class"


def _refuse_incomplete(name: str, problems: tuple[str, ...]) -> None:
    if problems:
        raise refused("MODEL_INCOMPLETE", f"{name} is no model: {'; '.join(problems)}")


#: An engine without plug-ins.
NO_PLUGINS: Mapping[str, Plugin] = {}
