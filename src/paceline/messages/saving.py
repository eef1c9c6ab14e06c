"""Checkpoints: the position of the job in a checkpoint, and the servers' reports about the files they wrote."""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message
from paceline.messages.membership import JobArgs
from paceline.messages.work import ValidatorSpec
from paceline.types import PhaseEntry, SavedFile, Segment


class Position(msgspec.Struct, frozen=True):
    """The state of a job at a version, without the tensors: all that the job needs to continue from there."""

    incarnation: int
    version: int
    watermark: int
    above: tuple[int, ...]
    segments: tuple[Segment, ...]
    phases: tuple[PhaseEntry, ...]
    validators: tuple[ValidatorSpec, ...]
    job: JobArgs
    metrics: dict[str, float]
    results: tuple[tuple[int, int, dict[str, float]], ...] = ()
    logs: dict[str, float] = {}
    samples: float = 0.0
    empty: int = 0
    claims: tuple[str, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True):
    """A complete checkpoint: its folder, and the position from which a job continues."""

    folder: str
    position: Position


class Saved(Message, frozen=True):
    """This server has written its blocks of a version to the folder of the checkpoint, or `problem` says why not.

    `chains` has each block's hash chain at that version. Repeated until `SaveOver`.
    """

    incarnation: int
    epoch: int
    version: int
    files: tuple[SavedFile, ...]
    chains: tuple[tuple[int, bytes], ...]
    problem: str = ""


class SaveOver(Message, frozen=True):
    """The checkpoint of that version is complete or given up: the server drops the version and stops its report."""

    generation: int
    incarnation: int
    version: int


class NotLoaded(Message, frozen=True):
    """This server could not load its blocks from the checkpoint that `Assign` named; `problem` says why."""

    incarnation: int
    epoch: int
    folder: str
    problem: str
