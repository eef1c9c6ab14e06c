"""Checkpoints: what is in one, and what servers say of theirs."""

from __future__ import annotations

import msgspec

from paceline.messages.base import Message
from paceline.messages.membership import JobArgs
from paceline.messages.work import ValidatorSpec
from paceline.types import PhaseEntry, SavedFile, Segment


class Position(msgspec.Struct, frozen=True):
    """Where a job is at a version: everything but tensors that it needs to go on from there."""

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
    """A complete checkpoint: where it is, and where it goes on."""

    folder: str
    position: Position


class Saved(Message, frozen=True):
    """This server's blocks of a version are in the checkpoint's folder, or `problem` says why not.

    `chains` has each block's hash chain at that version. Said again until `SaveOver`.
    """

    incarnation: int
    epoch: int
    version: int
    files: tuple[SavedFile, ...]
    chains: tuple[tuple[int, bytes], ...]
    problem: str = ""


class SaveOver(Message, frozen=True):
    """The checkpoint of that version is complete or given up: its memory is free, its report need not be repeated."""

    generation: int
    incarnation: int
    version: int


class NotLoaded(Message, frozen=True):
    """This server could not load its blocks from the checkpoint that its assignment named."""

    incarnation: int
    epoch: int
    folder: str
    problem: str
