"""Bulk move: one edge of the demand, a state that goes from one node to another."""

from __future__ import annotations

from dataclasses import dataclass

from worldline.admissibility.bounds import check_state_bytes
from worldline.errors import InvalidInput
from worldline.fields import identifier


@dataclass(frozen=True, slots=True)
class BulkMove:
    """`state_bytes` bytes from the source to the target; nobody waits for this one move.

    Raises:
        InvalidInput: a value out of range, or a move from a node to itself; `field` is its name.
    """

    move_id: str
    source_node_id: str
    target_node_id: str
    state_bytes: int

    def __post_init__(self) -> None:
        identifier(self.move_id, "move_id")
        identifier(self.source_node_id, "source_node_id")
        identifier(self.target_node_id, "target_node_id")
        check_state_bytes(self.state_bytes, "state_bytes")
        if self.source_node_id == self.target_node_id:
            raise InvalidInput(
                f"move {self.move_id} does not leave {self.source_node_id}", field="target_node_id"
            )

    @property
    def node_ids(self) -> tuple[str, str]:
        """The two nodes that it takes while it runs."""
        return self.source_node_id, self.target_node_id
