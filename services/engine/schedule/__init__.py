"""Schedule: which world gets the next quantum, and at which quality.

Pure: claims and `now` in, a choice and its reason out. The same code decides in the engine and in
the simulation (`bench/serving`).
"""

from services.engine.schedule.choice import Band, Choice, Chooser, Idle, Wait, keeps, pick
from services.engine.schedule.claim import Claim
from services.engine.schedule.grid import Release, ReleaseGrid, transient_over
from services.engine.schedule.guard import Guard, headroom_s, slack_s
from services.engine.schedule.ladder import (
    Firm,
    Ladder,
    QualityHistory,
    Steps,
    Why,
    choose_steps,
)
from services.engine.schedule.wave import wave_floors

__all__ = [
    "Band",
    "Choice",
    "Chooser",
    "Claim",
    "Firm",
    "Guard",
    "Idle",
    "Ladder",
    "QualityHistory",
    "Release",
    "ReleaseGrid",
    "Steps",
    "Wait",
    "Why",
    "choose_steps",
    "headroom_s",
    "keeps",
    "pick",
    "slack_s",
    "transient_over",
    "wave_floors",
]
