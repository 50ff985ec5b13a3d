"""Sides for tests of pairs: over the link, and each with one fault that `fault` names."""

from __future__ import annotations

import os
import time

from bench.side import Side, Unfit


class Source(Side):
    def prepare(self) -> str:
        if self.at.options["fault"] == "unfit":
            raise Unfit("no such library")
        return "source"

    def connect(self, peer: str) -> None:
        assert peer == "target"

    def run(self) -> None:
        fault = self.at.options["fault"]
        if fault == "dies":
            os.write(2, b"out of cheese\n")
            os._exit(3)
        if fault == "hangs":
            time.sleep(3_600)
        self.at.link.sendall(self.at.view)


class Target(Side):
    def prepare(self) -> str:
        return "target"

    def run(self) -> None:
        done, view = 0, self.at.view
        if self.at.options["fault"] == "lazy":
            view = memoryview(bytearray(view.nbytes))
        while done < view.nbytes:
            done += self.at.link.recv_into(view[done:])


SIDES = {"source": Source, "target": Target}
