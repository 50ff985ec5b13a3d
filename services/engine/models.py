"""Models: one object per preset, built once, in the worker's thread, shared by all sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from services.engine.chores import Chores
from services.engine.model.factory import build_world
from services.engine.parts import Parts, at_once
from services.engine.plugin import NO_PLUGINS, Plugin
from services.engine.world import InParts, WorldModel
from worldline.state.layout import Layout
from worldline.state.tree import plan


@dataclass(frozen=True)
class Loaded:
    """A model and where its state's leaves lie in a slot."""

    model: WorldModel
    layout: Layout


class Models:
    """Builds presets on demand: the built-in ones, and those of plug-ins."""

    def __init__(
        self,
        chores: Chores,
        weights_seed: int,
        device: torch.device,
        plugins: Mapping[str, Plugin] = NO_PLUGINS,
    ) -> None:
        self._chores = chores
        self._plugins = plugins
        self._weights_seed = weights_seed
        self._device = device
        self._loaded: dict[str, Loaded] = {}
        self._warm: set[str] = set()
        self._building = asyncio.Lock()

    async def get(self, preset: str) -> Loaded:
        """The model of a preset.

        Raises:
            InvalidInput: no such preset, or its plug-in cannot be made.
        """
        async with self._building:
            known = self._loaded.get(preset)
            if known is None:
                known = self._loaded[preset] = await self._chores.run(
                    at_once(lambda: self._load(preset))
                )
            return known

    async def warm(self, preset: str) -> Loaded:
        """Build it and run its first block's transient, once a process."""
        loaded = await self.get(preset)
        if preset not in self._warm:
            await self._chores.run(_warmed(loaded.model))
            self._warm.add(preset)
        return loaded

    def _load(self, preset: str) -> Loaded:
        model = build_world(preset, self._weights_seed, self._device, self._plugins)
        return Loaded(model, plan(model.state_spec()))


def _warmed(model: WorldModel) -> Parts[None]:
    """In parts where the model can, else in one."""
    if isinstance(model, InParts):
        yield from model.warming()
    else:
        model.warm()
