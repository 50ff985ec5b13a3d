"""Own state: a state tree of the model's own tensors, copied to the slot and from it.

The slot holds the state as of the last `layout` or `load`. At a block boundary `layout` copies
once, however often it is asked: whoever reads the slot meanwhile sees no byte change. What a later
block writes is copied when somebody asks again.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch

from services.engine.carrier import Carrier, carrier_for
from services.engine.memory import Memory
from services.engine.parts import Parts
from services.engine.slotmap import SlotMap
from services.engine.world import OwnsState, StateTree
from worldline.errors import InvariantBroken
from worldline.state.harvest import harvest
from worldline.state.layout import Layout
from worldline.state.tree import check_same, materialize


class OwnState(Memory):
    """See `Memory`. What the model lent is given back by `close`, whatever happened before."""

    copies: ClassVar[bool] = True

    def __init__(self, slots: SlotMap, layout: Layout, model: OwnsState) -> None:
        super().__init__(slots, layout)
        self._model = model
        self._carrier: Carrier | None = None
        self._is_stored = False

    def begin(self) -> None:
        """See `Memory`.

        Raises:
            CapacityExhausted: the model has no tensors for one more session.
            InvalidInput: they are not those of `state_spec`; `leaf` says where.
        """
        self._borrow()
        self._clear_padding()

    def loading(self) -> Parts[None]:
        """See `Memory`. No address changes: the bytes come to the tensors. Raises as `begin`."""
        self._borrow()
        yield from self._open_carrier().loading(self._open_buffer())
        _copy_scalars(cast(StateTree, materialize(self._layout, self._open_buffer())), self.state)
        self.settle()

    def changing(self) -> None:
        """See `Memory`."""
        self._is_stored = False

    def storing(self) -> Parts[Layout]:
        """See `Memory`."""
        self.check_in_place()
        found = harvest(self.state)
        check_same(found, self._layout)
        if not self._is_stored:
            self.settle()
            yield from self._open_carrier().storing(self._open_buffer())
            self.settle()
            self._is_stored = True
        return self._layout.with_scalars({scalar.path: scalar.value for scalar in found.scalars})

    def let_go(self) -> None:
        """See `Memory`."""
        state = self.state
        super().let_go()
        if state:
            self._model.take_back(state)

    def close(self) -> None:
        """See `Memory`."""
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            carrier.close()
        super().close()

    def _borrow(self) -> None:
        state = self._model.lend()
        self._hold(state)  # before it is looked at: what was lent is given back
        found = harvest(state)
        check_same(found, self._layout)
        tensors = [cast(torch.Tensor, item.value) for item in found.tensors]
        self._carrier = carrier_for(self._layout, tensors, self._open_buffer())

    def _open_carrier(self) -> Carrier:
        if self._carrier is None:
            raise InvariantBroken("a state of a model's own tensors was never begun")
        return self._carrier


def _copy_scalars(source: Any, target: Any) -> None:
    """Every scalar of one tree into the other, which has the same containers and keys."""
    for key, child in source.items() if isinstance(source, dict) else enumerate(source):
        if isinstance(child, (dict, list)):
            _copy_scalars(child, target[key])
        elif not isinstance(child, torch.Tensor):
            target[key] = child
