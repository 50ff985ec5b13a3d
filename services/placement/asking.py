"""Asking: may this move happen? Until admission answers, and knows what is under way."""

from __future__ import annotations

from services.placement.peers import Deadlines, Peers
from services.placement.persistence import ask_again
from services.placement.relearning import Relearning
from worldline.rpc.channel import call
from worldline.v1 import admission_pb2, move_pb2

_ATTEMPTS = 3
#: An admission that still does not know after having been told so often dies again and again.
_TELLINGS_MAX = 2


class Asking:
    """Asks admission about moves and probes."""

    def __init__(self, peers: Peers, deadlines: Deadlines, relearning: Relearning) -> None:
        self._peers = peers
        self._deadlines = deadlines
        self._relearning = relearning

    async def admit_move(
        self, request: admission_pb2.AdmitMoveRequest
    ) -> admission_pb2.AdmitMoveResponse:
        """Admission's answer. One that has restarted is told what is under way, and asked again.

        Raises:
            WorldlineError: it could not be asked, or told.
        """
        told = self._relearning.told
        answer = await self._ask(request)
        for _ in range(_TELLINGS_MAX):
            if answer.verdict.reason != move_pb2.REJECT_REASON_RELEARNING:
                break
            await self._relearning.tell(told)
            told = self._relearning.told
            answer = await self._ask(request)
        return answer

    async def _ask(
        self, request: admission_pb2.AdmitMoveRequest
    ) -> admission_pb2.AdmitMoveResponse:
        answer: admission_pb2.AdmitMoveResponse = await ask_again(
            lambda: call(
                self._peers.admission().AdmitMove, request, timeout_s=self._deadlines.admit_s
            ),
            attempts=_ATTEMPTS,
            gone=lambda: False,
        )
        return answer
