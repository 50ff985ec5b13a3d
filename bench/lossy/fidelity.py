"""Fidelity: how near frames are to the exact twin's, in dB. Pure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_PEAK = 255.0
#: Fidelity of identical frames, whose PSNR is infinite: a mean square error of 1e-10 of full scale.
CEILING_DB = 100.0


def psnr_db(frames: NDArray[np.uint8], exact: NDArray[np.uint8]) -> float:
    """Peak signal-to-noise ratio of uint8 samples over a whole block; infinite where equal."""
    error = frames.astype(np.float64) - exact.astype(np.float64)
    square = float(np.mean(error * error))
    return math.inf if square == 0.0 else 20.0 * math.log10(_PEAK) - 10.0 * math.log10(square)


def divergence_db(psnr: float) -> float:
    """By how much fidelity has fallen from that of identical frames, `CEILING_DB`; 0 for those.

    Frames that differ in a handful of samples can be above the ceiling; they are no less different,
    so whether a block is identical is judged by its bits and never by this.
    """
    return max(0.0, CEILING_DB - psnr)
