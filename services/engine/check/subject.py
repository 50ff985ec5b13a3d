"""Subject: the model that is checked, loaded as an engine loads it, and what loading it did."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from services.engine.device import EngineDevice
from services.engine.model.factory import build_world, presets
from services.engine.plugin import Plugin, load_plugin
from services.engine.selfcheck import sampled
from services.engine.world import WorldModel
from worldline.state.layout import Layout
from worldline.state.tree import plan


@dataclass
class Subject:
    """A loaded model. `layout` is that of its states in a slot."""

    name: str
    device: EngineDevice
    model: WorldModel
    #: None for a built-in preset.
    plugin: Plugin | None
    #: Top-level names of the modules that came with it.
    modules: frozenset[str] = frozenset()
    #: Files that were opened to make and to warm it.
    files: tuple[str, ...] = ()
    #: How much of its state stands for all of it; empty: it is whole.
    sample: str = ""
    _layouts: list[Layout] = field(default_factory=list)

    @property
    def layout(self) -> Layout:
        """Where the leaves of its states lie, as an engine plans it: once.

        Raises:
            InvalidInput: `state_spec` has something that cannot be moved.
        """
        if not self._layouts:
            self._layouts.append(plan(self.model.state_spec()))
        return self._layouts[0]


def load_subject(name: str, weights_seed: int, device: EngineDevice) -> Subject:
    """Load `module:attribute`, or a built-in preset by its name, and warm it.

    Raises:
        InvalidInput: it cannot be loaded; the message names module, attribute and member.
    """
    plugins: Mapping[str, Plugin] = {}
    before = set(sys.modules)
    if ":" in name or name not in presets():
        plugin = load_plugin(name)
        plugins = {plugin.preset: plugin}
    preset = next(iter(plugins), name)
    with opened_files() as files:
        whole = build_world(preset, weights_seed, device.torch_device, plugins)
        model = sampled(whole)
        model.warm()
        device.settle()
    modules = frozenset(module.partition(".")[0] for module in set(sys.modules) - before)
    sample = "" if model is whole else _said(model, whole)
    return Subject(name, device, model, plugins.get(preset), modules, tuple(files), sample)


def _said(model: WorldModel, whole: WorldModel) -> str:
    part, all_bytes = (plan(one.state_spec()).extent_bytes for one in (model, whole))
    return (
        f"a sample of {part:,} of its {all_bytes:,} bytes: fewer layers, each of which has the "
        "same leaves, written by the same code; an engine's self-check takes the same"
    )


_listeners: list[list[str]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _listeners and event == "open" and isinstance(arguments[0], (str, bytes)):
        for listener in _listeners:
            listener.append(str(arguments[0]))


def _listen() -> None:
    """A hook cannot be taken back (PEP 578): there is one, which mostly hears nobody."""
    if not _listen.__dict__.setdefault("installed", False):
        sys.addaudithook(_audit)
        _listen.__dict__["installed"] = True


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """The paths that Python opens inside, in order."""
    _listen()
    heard: list[str] = []
    _listeners.append(heard)
    try:
        yield heard
    finally:
        _listeners.remove(heard)
