"""The dials that change while a job runs: the schedule of modes in the command, and what `paceline set` accepts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite

import msgspec

from paceline.config.dials import Mode, parse_mode
from paceline.errors import UsageError
from paceline.types import DialChange

DIALS = "mode=bsp|ssp:K|asp|allreduce, slots=N, lr=NUMBER or lr=xFACTOR, checkpoint_every=STEPS or SECONDSs"
"""What may be set, for messages."""

_EVERY = re.compile(r"(\d+)|(\d+(?:\.\d+)?)s")
_LARGEST = 1 << 40


def parse_every(text: str, name: str = "--checkpoint-every") -> tuple[int, float]:
    """Read ``500`` (versions), ``30s`` (seconds) or ``0`` (never); returns (versions, seconds), one of them 0.

    Raises:
        UsageError: anything else; the message calls it `name`.
    """
    found = _EVERY.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{name} must be a number of steps (500), of seconds (30s), or 0 for never, not {text!r}")
    steps, seconds = found.groups()
    return (int(steps), 0.0) if steps is not None else (0, float(seconds))


AUTO = "auto"
"""The number of slots that the job chooses itself, by the speeds of its workers."""


def parse_slots(value: object, name: str = "--slots") -> int | None:
    """Read a number of slots, or ``auto``, which is None.

    Raises:
        UsageError: anything else; the message calls it `name`.
    """
    text = str(value)
    if text == AUTO:
        return None
    if text.removeprefix("-").isdecimal() and int(text) < 1:
        raise UsageError(f"{name} must be at least 1, not {text}")
    if isinstance(value, bool) or not text.isdecimal() or int(text) > _LARGEST:
        raise UsageError(f"{name} must be a whole number, at least 1, or auto, not {value!r}")
    return int(text)


@dataclass(frozen=True, slots=True)
class Row:
    """One mode of a schedule: it holds from step `start` on, until the next row."""

    start: int
    mode: Mode


def parse_schedule(text: str) -> tuple[Row, ...]:
    """Read a mode, or ``bsp@500,ssp:4@2000,asp``: bsp until step 500, ssp:4 until step 2000, then asp.

    Raises:
        UsageError: a mode is not known, or the steps do not increase.
    """
    parts = [part.strip() for part in text.split(",")]
    rows, start = [], 0
    for number, part in enumerate(parts):
        name, at, until = part.partition("@")
        rows.append(Row(start, parse_mode(name)))
        is_last = number == len(parts) - 1
        if is_last and at:
            raise UsageError(f"--mode {text}: the last mode holds to the end, so it has no step: write {name!r} there")
        if not is_last:
            if not until.isdecimal():
                raise UsageError(
                    f"--mode {text}: {part!r} must say until which step it holds, such as {name or 'bsp'}@500"
                )
            if not start < int(until) <= _LARGEST:
                raise UsageError(f"--mode {text}: the steps must increase, but {until} follows {start}")
            start = int(until)
    return tuple(rows)


def schedule_name(text: str) -> str:
    """A schedule in its shortest form, in which equal schedules are equal texts.

    Raises:
        UsageError: the text is not a schedule.
    """
    rows = parse_schedule(text)
    ends = [f"@{after.start}" for _, after in pairwise(rows)] + [""]
    return ",".join(row.mode.name + end for row, end in zip(rows, ends, strict=True))


def parse_lr(text: str) -> tuple[float, float]:
    """Read a learning rate (``0.01``) or a factor (``x0.5``); returns (rate, factor), one of them 0.

    Raises:
        UsageError: it is not a number above 0.
    """
    is_factor = text.startswith("x")
    try:
        value = float(text.removeprefix("x"))
    except ValueError:
        value = 0.0
    if not (value > 0 and isfinite(value)):
        raise UsageError(f"lr must be a number above 0 (lr=0.01), or a factor above 0 (lr=x0.5), not {text!r}")
    return (0.0, value) if is_factor else (value, 0.0)


def parse_change(words: Iterable[str]) -> DialChange:
    """Read what `paceline set` is given: words such as ``mode=ssp:4`` and ``lr=x0.5``.

    Raises:
        UsageError: a dial is not known or named twice, or its value cannot be.
    """
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise UsageError(f"{word!r} is not a dial with its value; use {DIALS}")
        if name in given:
            raise UsageError(f"{name} is given twice: leave one of them out")
        given[name] = value
    return change_of(given)


def change_of(given: dict[str, str]) -> DialChange:
    """The change that dials, by name, with their values as text, describe.

    Raises:
        UsageError: a dial is not known, or its value cannot be.
    """
    if not given:
        raise UsageError(f"nothing to set; use {DIALS}")
    change = DialChange()
    for name, value in given.items():
        match name:
            case "mode":
                if "@" in value or "," in value:
                    raise UsageError(f"mode={value}: set takes one mode, which holds from the first step it can")
                change = msgspec.structs.replace(change, mode=parse_mode(value).name)
            case "slots":
                if not value.isdecimal() or not 1 <= int(value) <= _LARGEST:
                    raise UsageError(f"slots must be a whole number, at least 1, not {value!r}")
                change = msgspec.structs.replace(change, slots=int(value))
            case "lr":
                rate, factor = parse_lr(value)
                change = msgspec.structs.replace(change, lr=rate, lr_scale=factor)
            case "checkpoint_every":
                steps, seconds = parse_every(value, "checkpoint_every")
                change = msgspec.structs.replace(change, checkpoint_steps=steps, checkpoint_s=seconds)
            case _:
                raise UsageError(f"{name} is not a dial that can be set while a job runs; use {DIALS}")
    return change


def in_words(change: DialChange) -> str:
    """A change as `paceline set` takes and prints it, such as ``mode ssp:4, lr x0.5``."""
    parts = [f"mode {change.mode}"] if change.mode else []
    if change.slots:
        parts.append(f"slots {change.slots}")
    if change.lr or change.lr_scale:
        parts.append(f"lr {change.lr:g}" if change.lr else f"lr x{change.lr_scale:g}")
    if change.checkpoint_steps >= 0:
        every = f"{change.checkpoint_s:g}s" if change.checkpoint_s > 0 else str(change.checkpoint_steps)
        parts.append(f"checkpoint_every {every}")
    return ", ".join(parts)
