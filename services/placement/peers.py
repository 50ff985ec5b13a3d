"""Peers: typed stubs to admission, movers and engines over one pool of channels."""

from __future__ import annotations

from dataclasses import dataclass

from services.placement.fleet import Fleet
from worldline.fields import positive
from worldline.rpc.channel import ChannelPool
from worldline.v1.admission_pb2_grpc import AdmissionServiceStub
from worldline.v1.engine_pb2_grpc import EngineServiceStub
from worldline.v1.mover_pb2_grpc import MoverServiceStub


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds that one RPC of each kind may take.

    Raises:
        InvalidInput: one is not a finite number above 0.
    """

    admit_s: float = 5.0
    reserve_s: float = 30.0
    warm_s: float = 90.0
    freeze_s: float = 10.0
    push_s: float = 100.0
    #: From the order to push until the target has granted the wire: two tickets are checked.
    grant_s: float = 15.0
    verify_s: float = 30.0
    attach_s: float = 30.0
    #: Promote, Activate, Thaw, Detach, Release, FinishMove: nothing heavy happens in them.
    quick_s: float = 5.0
    open_s: float = 120.0
    register_s: float = 60.0
    #: How long an obligation is pursued before the move ends without it.
    obligation_s: float = 120.0
    #: A ticket expires by itself: its end is worth less waiting.
    finish_s: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            positive(getattr(self, name), name)

    def of_push(self, lease_ms: int) -> float:
        """Seconds after which a push cannot succeed any more: its wire is leased for `lease_ms`.

        A source mover that is alive but stuck freezes its world no longer than this.
        """
        return min(self.push_s, self.grant_s + lease_ms / 1e3)


class Peers:
    """Stubs by name; addresses are looked up at each call, because peers come back elsewhere."""

    def __init__(self, fleet: Fleet, admission_address: str) -> None:
        self._fleet = fleet
        self._admission_address = admission_address
        self._pool = ChannelPool()

    def admission(self) -> AdmissionServiceStub:
        """Admission."""
        return AdmissionServiceStub(self._pool.get(self._admission_address))

    def engine(self, engine_id: str) -> EngineServiceStub:
        """The engine of that name.

        Raises:
            NotFound: it is not registered.
        """
        return EngineServiceStub(self._pool.get(self._fleet.engine(engine_id).engine_address))

    def mover(self, node_id: str) -> MoverServiceStub:
        """The mover of that node.

        Raises:
            NotFound: it is not registered.
        """
        return MoverServiceStub(self._pool.get(self._fleet.node(node_id).mover_address))

    def mover_address(self, node_id: str) -> str:
        """Where other movers dial that node's.

        Raises:
            NotFound: it is not registered.
        """
        return self._fleet.node(node_id).mover_address

    async def forget(self, address: str) -> None:
        """Close the channel to a peer that will not come back under this address."""
        await self._pool.drop(address)

    async def close(self) -> None:
        """Close every channel."""
        await self._pool.close()

    def __len__(self) -> int:
        return len(self._pool)
