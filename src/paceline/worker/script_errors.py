"""Adds the remedy to errors of torch that have another meaning in a job. Works without torch."""

from __future__ import annotations

_SECOND_TIME = "backward through the graph a second time"
_REMEDY = (
    "In a job, a turn must not use tensors that an earlier turn computed, such as a hidden state: another worker may "
    "have had that turn. Begin such state anew in each turn. detach() ends this error, but the result would depend on "
    "the number of workers."
)


def remedy(error: BaseException) -> str | None:
    """What to do about torch's error that the graph of an earlier turn was used; None for any other error."""
    return _REMEDY if isinstance(error, RuntimeError) and _SECOND_TIME in str(error) else None


def add_remedy(error: BaseException) -> None:
    """Add the remedy, if there is one, to what is printed of `error`."""
    text = remedy(error)
    if text is not None and text not in getattr(error, "__notes__", ()):
        error.add_note(text)
