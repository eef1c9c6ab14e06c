"""Every message that one role sends to another: plain values without behaviour. No I/O, no clock, no torch.

A request has a number `req`; it ends in a reply with the same number, in `Refused`, or in a named error at its sender.
Messages of the coordinator carry its `generation`; messages about state carry the `incarnation`, and those about blocks
the placement `epoch`. Tensors are not in a message: each follows it as a *frame*, which a `BlockFrame` declares.

What the nouns of the messages mean (docs/architecture.md has all words of the project):

===========  =========================================================================================================
attempt      one worker's work on one slot, named by its fence
block        a contiguous range of the model's tensors: the unit of placement, push, pull and checkpoint
claim        the right of one worker to do a thing once for the whole job
commit       a row of the log that makes the next version
copy         a block's content on one server; joining while it is sent, in sync (a backup) afterwards
epoch        the number of a placement
fence        (generation, counter): the name of an attempt
frame        the bytes of one block behind a message, encoded by a codec
generation   the number of a start of the coordinator
grant        the message that gives a lease
hold         how many slots of a step may wait for a lower one
incarnation  the number of the job's history; a rewind begins the next one
lease        the permission for one worker to compute one slot
lane         the way that the messages of a session go: ``local``, ``tcp``, or within the process
owner        the primary of a block: the server that sums it and answers its pulls
part         one of several messages that carry one large answer, sum or copy
phase        one `batches` loop of the script
piece        the elements of one tensor that lie in one block
pin          a reason to keep a version readable
placement    which server owns, backs up or is sent which block
plan         all segments so far
position     where a job stands at a version: all that a checkpoint holds besides tensors
push         gradients of an attempt on their way to a server; provisional until sealed
receipt      a server's report that it has one whole attempt
round        the validation of one version by one validator
seal         the end of an attempt: its weight, and which pushes count
segment      a durable row: from a step on, the sample position, slots, batch size, window and mode
session      a proven connection of two processes, named by the peer's node id
turn         one pass of the loop body: one slot
watermark    the lowest step that a state lacks
===========  =========================================================================================================

A class name is part of the encoding. A renamed class keeps its old name as its `tag`.
"""

from __future__ import annotations

from paceline.messages.base import Message, Ok, Refused
from paceline.messages.blocks import BlockFrame, Pull, PullReply, Push, PushAck, Seal, SumMeta
from paceline.messages.control import (
    Drain,
    Exited,
    Finish,
    Follow,
    Following,
    HostLost,
    SaveNow,
    Scale,
    Shutdown,
    StatusReply,
    StatusRequest,
    Summary,
)
from paceline.messages.files import FileOffer, FilePiece, FilePieceAck, FilesNeeded, FilesUnpacked
from paceline.messages.groups import Broken, Close, Meet, Met
from paceline.messages.hosts import (
    AgentBeat,
    EndHost,
    Enlist,
    EnlistAgain,
    Enlisted,
    HostFacts,
    Reports,
    RoleEnded,
    RoleLine,
    RunningRole,
    SavedPiece,
    SignalRole,
    StartRole,
    SupervisorBeat,
    TurnedAway,
)
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
    Echo,
    Echoed,
    Hashed,
    Probe,
    Reachable,
    Replicate,
    Replicated,
    Unreachable,
)
from paceline.messages.samplers import AskSlot, SamplerBeat, SamplerNews, Samplers, SamplerWork, SlotPrepared
from paceline.messages.saving import Checkpoint, NotLoaded, Position, Saved, SaveOver
from paceline.messages.steps import Assign, Choose, Committed, Plan, Ready, Receipt, Summed, Unpin
from paceline.messages.work import (
    NOT_FINITE,
    BeginPhase,
    Claim,
    ClaimDone,
    Claimed,
    CompareData,
    Declare,
    DeclarePolicy,
    DialsSet,
    EvalGrant,
    EvalOver,
    Evaluated,
    GiveBack,
    Grant,
    HeldLease,
    LeaveOut,
    PhaseBegun,
    PhaseOver,
    Revoke,
    SavedModel,
    Sealed,
    SetDials,
    Stop,
    Turn,
    ValidatorSpec,
    Warn,
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
    | SetDials
    | DialsSet
    | Claim
    | Claimed
    | ClaimDone
    | Failed
    | Bye
    | Ok
    | Beat
    | BeatAck
    | Drain
    | Exited
    | HostLost
    | StatusRequest
    | StatusReply
    | SaveNow
    | Scale
    | Finish
    | Follow
    | Following
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
    | Hashed
    | CopyOver
    | Unreachable
    | Reachable
    | Probe
    | Echo
    | Echoed
    | CompareData
    | LeaveOut
    | DeclarePolicy
    | Close
    | Meet
    | Met
    | Broken
    | Enlist
    | EnlistAgain
    | Enlisted
    | TurnedAway
    | AgentBeat
    | SupervisorBeat
    | StartRole
    | SignalRole
    | Reports
    | EndHost
    | FileOffer
    | FilesNeeded
    | FilePiece
    | FilePieceAck
    | FilesUnpacked
    | Warn
    | AskSlot
    | SlotPrepared
    | SamplerBeat
    | SamplerNews
    | Samplers
)

__all__ = [
    "NOT_FINITE",
    "Abort",
    "AgentBeat",
    "AnyMessage",
    "AskSlot",
    "Assign",
    "Beat",
    "BeatAck",
    "BeginPhase",
    "BlockFrame",
    "Broken",
    "Bye",
    "Chained",
    "Checkpoint",
    "Choose",
    "Claim",
    "ClaimDone",
    "Claimed",
    "Close",
    "Committed",
    "CompareData",
    "Copied",
    "CopyFrame",
    "CopyOver",
    "CopyPart",
    "CopyPartAck",
    "Declare",
    "DeclarePolicy",
    "DialsSet",
    "Drain",
    "Echo",
    "Echoed",
    "EndHost",
    "Enlist",
    "EnlistAgain",
    "Enlisted",
    "EvalGrant",
    "EvalOver",
    "Evaluated",
    "Exited",
    "Failed",
    "FileOffer",
    "FilePiece",
    "FilePieceAck",
    "FilesNeeded",
    "FilesUnpacked",
    "Finish",
    "Follow",
    "Following",
    "GiveBack",
    "Grant",
    "Hashed",
    "HeldLease",
    "HostFacts",
    "HostLost",
    "JobArgs",
    "LeaveOut",
    "Meet",
    "Message",
    "Met",
    "NotLoaded",
    "Ok",
    "PhaseBegun",
    "PhaseOver",
    "PlacementRequest",
    "Plan",
    "Position",
    "Prepare",
    "Prepared",
    "Probe",
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
    "Reports",
    "Revoke",
    "RoleEnded",
    "RoleLine",
    "RunningRole",
    "SamplerBeat",
    "SamplerNews",
    "SamplerWork",
    "Samplers",
    "SaveNow",
    "SaveOver",
    "Saved",
    "SavedModel",
    "SavedPiece",
    "Scale",
    "Seal",
    "Sealed",
    "SetDials",
    "Shutdown",
    "SignalRole",
    "SlotPrepared",
    "StartRole",
    "StatusReply",
    "StatusRequest",
    "Stop",
    "SumMeta",
    "Summary",
    "Summed",
    "SupervisorBeat",
    "Turn",
    "TurnedAway",
    "Unpin",
    "Unreachable",
    "ValidatorSpec",
    "Warn",
    "Welcome",
]
