"""Forked: where a session branched off another, as the directory keeps it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from worldline.errors import InvalidInput
from worldline.fields import identifier, whole
from worldline.v1 import placement_pb2

#: Of one session, over its whole life.
BRANCH_NUMBER_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ForkedFrom:
    """The parent, and which of its branches this is; `block_index` None while it opens.

    `branch` is its number among all that were ever forked off the parent: with the parent's noise
    at that block it decides the branch's, so that it is given out once. `number_returned`: the
    engine has refused the fork, nothing was ever made under the number, and another may have it.
    """

    session_id: str
    epoch: int
    branch: int
    same_noise: bool = False
    block_index: int | None = None
    number_returned: bool = False

    def __post_init__(self) -> None:
        identifier(self.session_id, "forked_from.session_id")
        whole(self.epoch, "forked_from.epoch", at_least=1)
        whole(self.branch, "forked_from.branch", at_most=BRANCH_NUMBER_MAX)
        for name in ("same_noise", "number_returned"):
            if type(getattr(self, name)) is not bool:
                raise InvalidInput(f"forked_from.{name} is no flag", field=f"forked_from.{name}")
        if self.block_index is not None:
            whole(self.block_index, "forked_from.block_index")


def forked_to_json(forked: ForkedFrom | None) -> str | None:
    """The durable form."""
    if forked is None:
        return None
    return json.dumps({name: getattr(forked, name) for name in ForkedFrom.__slots__})


def forked_from_json(text: str | None) -> ForkedFrom | None:
    """Parse the durable form.

    Raises:
        InvalidInput, TypeError, ValueError: it is none.
    """
    return None if text is None else ForkedFrom(**json.loads(text))


def forked_to_proto(forked: ForkedFrom | None) -> placement_pb2.ForkedFrom | None:
    """The wire form."""
    if forked is None:
        return None
    return placement_pb2.ForkedFrom(
        session_id=forked.session_id,
        epoch=forked.epoch,
        block_index=forked.block_index,
        branch=forked.branch,
        same_noise=forked.same_noise,
    )
