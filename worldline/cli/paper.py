"""Paper: the measured figures that serve as defaults and worked examples (arXiv 2607.10389).

Rates are of whole verified moves, so that no set-up comes on top of them.
"""

from __future__ import annotations

from typing import Final

from worldline.cli.fabric import Fabric
from worldline.cli.regimes import MapObject

_GBIT_PER_S: Final = 1e9 / 8

#: Section 3.1: the movable state of Matrix-Game-2, 420 tensors.
STATE: Final = "1670124960B"
#: Section 3.3: what 0.783 steps a second rewrite.
DIRTY_RATE: Final = "0.93GB/s"
#: Section 2: the release period of a C1 block.
HORIZON: Final = "400ms"
#: Section 6.4: the verified mover with the tail schedule on 100 Gb/s.
RATE: Final = "94.8Gb/s"

#: The fabrics that the paper moved this state over, slowest first.
FABRICS: Final = (
    Fabric("budget", 9.4 * _GBIT_PER_S),  # 6.4: two instances at the limit of their NICs
    Fabric("roce-25", 21.5 * _GBIT_PER_S),  # appendix E: the 25 Gb RoCE tier
    Fabric("pcie-rdma", 73.0 * _GBIT_PER_S),  # 6.3: the four-node cell, one to one
    Fabric("line-rate", 94.8 * _GBIT_PER_S),  # 6.4: the tail schedule
    Fabric("nvlink", 1_670_124_960 / 18.8e-3),  # 6.2: 18.8 ms on two H100
)
#: 400 ms is the block (section 2), 600 ms the contract of section 6.2; the rest brackets them.
SLOS: Final = ("100ms", "200ms", "400ms", "600ms", "1s")

#: Section 6.3: the contention law's first case, T(2).
AT_ONCE: Final = 2
#: Section 6.3: the break-even share of moves that find their target warm, and what a first touch
#: of a cold one takes.
WARM_SHARE_MIN: Final = 0.64
COLD_START_MS: Final = 11_974.0

#: Section 3.3 at 0.783 steps a second, and section 6.3 at a production 10 Hz.
_DIRTY_NOW: Final = 0.93e9
_DIRTY_AT_10_HZ: Final = 13.5e9
_RATES: Final = {fabric.name: fabric.rate_bytes_per_s for fabric in FABRICS}

#: Figure 2, as far as the text gives its numbers.
MAP_OBJECTS: Final = (
    MapObject("MG2 @ 0.78 Hz, two nodes", _DIRTY_NOW, _RATES["budget"]),
    MapObject("MG2 @ 0.78 Hz", _DIRTY_NOW, _RATES["line-rate"]),
    MapObject("MG2 @ 0.78 Hz, NVLink", _DIRTY_NOW, _RATES["nvlink"]),
    MapObject("MG2 @ 10 Hz", _DIRTY_AT_10_HZ, _RATES["line-rate"]),
    MapObject("MG2 @ 10 Hz, NVLink", _DIRTY_AT_10_HZ, _RATES["nvlink"]),
    MapObject("append-only loop", 0.0, _RATES["line-rate"]),
)
