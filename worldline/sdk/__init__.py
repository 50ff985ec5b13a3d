"""SDK: what a client program uses to open worlds, play them and move them."""

from __future__ import annotations

from worldline.move_phase import MovePhase
from worldline.park import ParkKind
from worldline.sdk.actions import Action
from worldline.sdk.block import Block
from worldline.sdk.client import Client
from worldline.sdk.drain import DrainRecord, LeftSession
from worldline.sdk.fan_out import FanOut
from worldline.sdk.inspecting import Inspected
from worldline.sdk.move_record import Failure, MoveRecord, Progress, PushStats
from worldline.sdk.records import (
    BlockCounts,
    Engine,
    ForkedFrom,
    Node,
    PlacementStatus,
    SessionInfo,
    SlotName,
    Trace,
    TraceEvent,
    TraceLink,
    TraceSpan,
    World,
)
from worldline.sdk.rejected import Rejected
from worldline.sdk.session import Session
from worldline.sdk.suspension import SuspensionRecord

__all__ = [
    "Action",
    "Block",
    "BlockCounts",
    "Client",
    "DrainRecord",
    "Engine",
    "Failure",
    "FanOut",
    "ForkedFrom",
    "Inspected",
    "LeftSession",
    "MovePhase",
    "MoveRecord",
    "Node",
    "ParkKind",
    "PlacementStatus",
    "Progress",
    "PushStats",
    "Rejected",
    "Session",
    "SessionInfo",
    "SlotName",
    "SuspensionRecord",
    "Trace",
    "TraceEvent",
    "TraceLink",
    "TraceSpan",
    "World",
]
