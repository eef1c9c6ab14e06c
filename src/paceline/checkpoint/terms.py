"""The term of a place of checkpoints: which run may write there (rule 16).

A run that begins or resumes at a place outside of its directory takes the next term: it makes the file ``terms/N``,
which only one run can make. A run with a lower term changes nothing at the place any more.
"""

from __future__ import annotations

import re
import secrets

import msgspec

from paceline.checkpoint.storage import Storage
from paceline.errors import CheckpointError, DeposedError

FOLDER = "terms"


class Term(msgspec.Struct, frozen=True):
    """The term `number` of a place. `key` tells who took it: no two runs have the same. `holder` is for people."""

    number: int
    key: str
    holder: str = ""


def newest_term(storage: Storage) -> Term | None:
    """The newest term that was taken; None if the place has none.

    Raises:
        CheckpointError: its file cannot be read.
        OSError: the place cannot be reached.
    """
    number = _newest(storage)
    return None if number == 0 else _read(storage, number)


def next_term(newest: Term | None, holder: str) -> Term:
    """A term after `newest`, for a run to take."""
    return Term(1 if newest is None else newest.number + 1, secrets.token_hex(8), holder)


def take_term(storage: Storage, term: Term) -> Term:
    """Take `term`, which `next_term` made; returns it.

    Raises:
        DeposedError: another run was faster.
        OSError: the place cannot be written.
    """
    if not storage.claim(_name(term.number), msgspec.json.encode(term)):
        raise DeposedError(term.number - 1, max(_newest(storage), term.number), storage.url)
    check_term(storage, term.number, term.key)  # without conditional writes, another run may have overwritten the file
    return term


def check_term(storage: Storage, number: int, key: str) -> None:
    """Check, before a change at the place, that the term `number` is the newest and was taken with `key`.

    Term 0 is that of a run directory, which the generation of the log guards: it is not checked.

    Raises:
        DeposedError: another run has taken over.
        CheckpointError: the file of the term is missing or cannot be read.
        OSError: the place cannot be reached.
    """
    if number == 0:
        return
    newest = _newest(storage)
    if newest > number or _read(storage, number).key != key:
        raise DeposedError(number, newest, storage.url)


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06d}"


def _newest(storage: Storage) -> int:
    return max((int(name) for name in storage.files(FOLDER) if re.fullmatch(r"\d{6,9}", name)), default=0)


def _read(storage: Storage, number: int) -> Term:
    try:
        return msgspec.json.decode(storage.read(_name(number)), type=Term)
    except FileNotFoundError:
        raise CheckpointError(FOLDER, f"{_name(number)} is missing: somebody has removed it") from None
    except (msgspec.MsgspecError, OSError) as error:
        raise CheckpointError(FOLDER, f"{_name(number)} cannot be read: {error}") from None
