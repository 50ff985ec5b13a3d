"""Peers: typed stubs to admission, movers and engines over one pool of channels."""

from __future__ import annotations

from dataclasses import dataclass

from services.placement.fleet import Fleet
from worldline.fields import positive
from worldline.rpc.channel import ChannelPool
from worldline.v1.admission_pb2_grpc import AdmissionServiceStub
from worldline.v1.doctor_pb2_grpc import ProcessDoctorServiceStub
from worldline.v1.engine_pb2_grpc import EngineServiceStub
from worldline.v1.mover_pb2_grpc import MoverServiceStub

#: How often an engine that may not have heard of it is asked to freeze.
FREEZE_ATTEMPTS = 3


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
    #: From the order to push until both movers are ready: two tickets are checked, memory pinned.
    #: What a ticket lets the move wait for its wire comes on top.
    arm_s: float = 15.0
    verify_s: float = 30.0
    attach_s: float = 30.0
    #: Copying a state to where it parks or back, a slow disk included.
    park_s: float = 240.0
    #: Promote, Activate, Thaw, Detach, Release, FinishMove: nothing heavy happens in them.
    quick_s: float = 5.0
    open_s: float = 120.0
    #: The parent's next boundary, a copy for each branch, and their proof.
    fork_s: float = 120.0
    register_s: float = 60.0
    #: One mover among many is asked what it holds: who does not answer soon is left out.
    describe_s: float = 2.0
    #: How long an obligation is pursued before the move ends without it.
    obligation_s: float = 120.0
    #: A ticket expires by itself: its end is worth less waiting.
    finish_s: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            positive(getattr(self, name), name)

    def of_arming(self, wait_s: float) -> float:
        """Seconds until an order to push is armed, which is granted its wire within `wait_s`.

        An offer that is early waits for its reservation.
        """
        return self.reserve_s + self.arm_s + wait_s

    def of_push_call(self, wait_s: float) -> float:
        """Seconds of a whole push: the arming, the freeze, and the bytes."""
        return self.of_arming(wait_s) + self.freeze_s * FREEZE_ATTEMPTS + self.push_s

    def of_push(self, lease_ms: int) -> float:
        """Seconds after the go when a push cannot succeed any more: the wire's lease is `lease_ms`.

        A source mover that is alive but stuck freezes its world no longer than this.
        """
        return min(self.push_s, self.quick_s + lease_ms / 1e3)


class Peers:
    """Stubs by name; addresses are looked up at each call, because peers come back elsewhere."""

    def __init__(self, fleet: Fleet, admission_address: str) -> None:
        self._fleet = fleet
        self._admission_address = admission_address
        self._pool = ChannelPool()

    def admission(self) -> AdmissionServiceStub:
        """Admission."""
        return self._pool.stub(AdmissionServiceStub, self._admission_address)

    def engine(self, engine_id: str) -> EngineServiceStub:
        """The engine of that name.

        Raises:
            NotFound: it is not registered.
        """
        return self._pool.stub(EngineServiceStub, self._fleet.engine(engine_id).engine_address)

    def mover(self, node_id: str) -> MoverServiceStub:
        """The mover of that node.

        Raises:
            NotFound: it is not registered.
        """
        return self._pool.stub(MoverServiceStub, self._fleet.node(node_id).mover_address)

    def doctor(self, address: str) -> ProcessDoctorServiceStub:
        """What a process tells of itself, whichever it is."""
        return self._pool.stub(ProcessDoctorServiceStub, address)

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
