"""Every message one role sends to another: plain values, no behaviour.

A request carries `req`, and ends in a reply that carries the same number, in `Refused`, or in a named error on the
asking side. Messages from the coordinator carry its `generation`; messages about state carry the `incarnation`, and
those about blocks the placement `epoch`. Tensors never stand in a message: they follow it as raw frames, one
`BlockFrame` in the message for each.
"""

from __future__ import annotations

from paceline.messages.base import Message, Ok, Refused
from paceline.messages.blocks import BlockFrame, Pull, PullReply, Push, PushAck, Seal, SumMeta
from paceline.messages.control import Exited, Finish, Scale, Shutdown, StatusReply, StatusRequest, Summary
from paceline.messages.membership import (
    Abort,
    Beat,
    BeatAck,
    Bye,
    Failed,
    JobArgs,
    PlacementRequest,
    Prepare,
    Prepared,
    Register,
    Welcome,
)
from paceline.messages.replicas import (
    Chained,
    Copied,
    CopyFrame,
    CopyOver,
    CopyPart,
    CopyPartAck,
    Hail,
    Hailed,
    Reachable,
    Replicate,
    Replicated,
    Try,
    Unreachable,
)
from paceline.messages.saving import Checkpoint, NotLoaded, Position, Saved, SaveOver
from paceline.messages.steps import Assign, Choose, Committed, Plan, Ready, Receipt, Summed, Unpin
from paceline.messages.work import (
    BeginPhase,
    Claim,
    ClaimDone,
    Claimed,
    Declare,
    EvalGrant,
    EvalOver,
    Evaluated,
    GiveBack,
    Grant,
    HeldLease,
    PhaseBegun,
    PhaseOver,
    Revoke,
    Sealed,
    Stop,
    Turn,
    ValidatorSpec,
)

AnyMessage = (
    Register
    | Welcome
    | Prepare
    | Prepared
    | Declare
    | BeginPhase
    | PhaseBegun
    | Turn
    | GiveBack
    | Stop
    | Claim
    | Claimed
    | ClaimDone
    | Failed
    | Bye
    | Ok
    | Beat
    | BeatAck
    | Exited
    | StatusRequest
    | StatusReply
    | Scale
    | Finish
    | Summary
    | Shutdown
    | Grant
    | EvalGrant
    | PhaseOver
    | EvalOver
    | PlacementRequest
    | Revoke
    | Abort
    | Push
    | PushAck
    | Pull
    | PullReply
    | Refused
    | Assign
    | Plan
    | Summed
    | Receipt
    | Choose
    | Ready
    | Committed
    | Saved
    | SaveOver
    | NotLoaded
    | Unpin
    | Replicate
    | Replicated
    | CopyPart
    | CopyPartAck
    | Copied
    | Chained
    | CopyOver
    | Unreachable
    | Reachable
    | Try
    | Hail
    | Hailed
)

__all__ = [
    "Abort",
    "AnyMessage",
    "Assign",
    "Beat",
    "BeatAck",
    "BeginPhase",
    "BlockFrame",
    "Bye",
    "Chained",
    "Checkpoint",
    "Choose",
    "Claim",
    "ClaimDone",
    "Claimed",
    "Committed",
    "Copied",
    "CopyFrame",
    "CopyOver",
    "CopyPart",
    "CopyPartAck",
    "Declare",
    "EvalGrant",
    "EvalOver",
    "Evaluated",
    "Exited",
    "Failed",
    "Finish",
    "GiveBack",
    "Grant",
    "Hail",
    "Hailed",
    "HeldLease",
    "JobArgs",
    "Message",
    "NotLoaded",
    "Ok",
    "PhaseBegun",
    "PhaseOver",
    "PlacementRequest",
    "Plan",
    "Position",
    "Prepare",
    "Prepared",
    "Pull",
    "PullReply",
    "Push",
    "PushAck",
    "Reachable",
    "Ready",
    "Receipt",
    "Refused",
    "Register",
    "Replicate",
    "Replicated",
    "Revoke",
    "SaveOver",
    "Saved",
    "Scale",
    "Seal",
    "Sealed",
    "Shutdown",
    "StatusReply",
    "StatusRequest",
    "Stop",
    "SumMeta",
    "Summary",
    "Summed",
    "Try",
    "Turn",
    "Unpin",
    "Unreachable",
    "ValidatorSpec",
    "Welcome",
]
