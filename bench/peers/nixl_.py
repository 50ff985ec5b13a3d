"""NIXL: a WRITE of all tensors at once through its UCX backend. Nothing is verified.

Option `progress_thread`: `y`, NIXL's default, or `n`. Registration, the exchange of metadata and
the preparation of the transfer are done once and not timed; the target counts from its
notification, which travels behind the bytes.
"""

from __future__ import annotations

import base64
import time

from nixl_cu13._api import nixl_agent, nixl_agent_config

from bench.side import Side, Unfit

_WITHIN_S = 100.0
_DONE = b"done"


class _Agent(Side):
    """Both sides: an agent that knows its end of the payload."""

    def prepare(self) -> str:
        threaded = self.at.options["progress_thread"] == "y"
        self._agent = nixl_agent(
            self.at.role, nixl_agent_config(enable_prog_thread=threaded, backends=["UCX"])
        )
        if "UCX" not in self._agent.backends:
            raise Unfit("NIXL has no UCX backend here")
        self._registered = self._agent.register_memory(
            [(self.at.address, self.at.view.nbytes, 0, "payload")], "DRAM"
        )
        if not self._registered:
            raise Unfit("NIXL cannot register the payload's memory")
        spans = [(address, size, 0) for address, size in self.at.spans()]
        self._spans = self._agent.get_xfer_descs(spans, "DRAM")
        metadata = self._agent.get_agent_metadata()
        described = self._agent.get_serialized_descs(self._spans)
        return " ".join(base64.b64encode(part).decode() for part in (metadata, described))

    def connect(self, peer: str) -> None:
        metadata, described = (base64.b64decode(part) for part in peer.split())
        self._other = self._agent.add_remote_agent(metadata)
        self._theirs = self._agent.deserialize_descs(described)

    def close(self) -> None:
        self._agent.deregister_memory(self._registered)


class Source(_Agent):
    """Writes."""

    def connect(self, peer: str) -> None:
        super().connect(peer)
        self._transfer = self._agent.initialize_xfer(
            "WRITE", self._spans, self._theirs, self._other, _DONE
        )
        if not self._transfer:
            raise Unfit("NIXL cannot prepare the transfer")

    def run(self) -> None:
        deadline_s = time.monotonic() + _WITHIN_S
        state = self._agent.transfer(self._transfer)
        while state == "PROC":
            state = self._agent.check_xfer_state(self._transfer)
            if time.monotonic() > deadline_s:
                raise TimeoutError("the transfer did not end")
        if state != "DONE":
            raise ConnectionError(f"the transfer ended as {state}")

    def close(self) -> None:
        self._agent.release_xfer_handle(self._transfer)
        super().close()


class Target(_Agent):
    """Waits for the notification, and makes progress meanwhile."""

    def run(self) -> None:
        deadline_s = time.monotonic() + _WITHIN_S
        while not self._agent.check_remote_xfer_done("source", _DONE):
            if time.monotonic() > deadline_s:
                raise TimeoutError("no notification came")


SIDES = {"source": Source, "target": Target}
