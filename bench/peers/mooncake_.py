"""Mooncake's transfer engine over TCP: one batch with a WRITE for each tensor; not verified."""

from __future__ import annotations

import json
from typing import Any

from bench.side import Side, Unfit

try:
    from mooncake.engine import TransferEngine
except ImportError as error:
    if "libibverbs" in str(error):
        raise ImportError(f"{error}: Mooncake needs the system's libibverbs1") from error
    raise


class _Engine(Side):
    """Both sides: an engine without a metadata server, its end of the payload registered."""

    def prepare(self) -> str:
        self._engine: Any = TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
            raise Unfit("Mooncake's transfer engine does not start")
        if self._engine.register_memory(self.at.address, self.at.view.nbytes):
            raise Unfit("Mooncake cannot register the payload's memory")
        host = f"127.0.0.1:{self._engine.get_rpc_port()}"
        return json.dumps({"host": host, "addresses": [where for where, _ in self.at.spans()]})

    def connect(self, peer: str) -> None:
        self._peer = json.loads(peer)

    def close(self) -> None:
        self._engine.unregister_memory(self.at.address)


class Source(_Engine):
    """Writes, then tells the target, which takes no part."""

    def run(self) -> None:
        addresses, sizes = zip(*self.at.spans(), strict=True)
        status = self._engine.batch_transfer_sync_write(
            self._peer["host"], list(addresses), self._peer["addresses"], list(sizes)
        )
        if status:
            raise ConnectionError(f"the batch ended with status {status}")
        self.at.tell()


class Target(_Engine):
    """Waits for the word; the engine's own threads receive."""

    def run(self) -> None:
        self.at.hear()


SIDES = {"source": Source, "target": Target}
