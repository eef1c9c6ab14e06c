"""What errors of torch mean in a job: adds the remedy to some, and finds those that say that a loader process died.

Works without torch.
"""

from __future__ import annotations

import re

_SECOND_TIME = "backward through the graph a second time"
_REMEDY = (
    "In a job, a turn must not use tensors that an earlier turn computed, such as a hidden state: another worker may "
    "have had that turn. Begin such state anew in each turn. detach() ends this error, but the result would depend on "
    "the number of workers."
)
_LOADER_DIED = re.compile(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by|exited unexpectedly)")


def remedy(error: BaseException) -> str | None:
    """What to do about torch's error that the graph of an earlier turn was used; None for any other error."""
    return _REMEDY if isinstance(error, RuntimeError) and _SECOND_TIME in str(error) else None


def add_remedy(error: BaseException) -> None:
    """Add the remedy, if there is one, to what is printed of `error`."""
    text = remedy(error)
    if text is not None and text not in getattr(error, "__notes__", ()):
        error.add_note(text)


def loader_death(error: BaseException | None) -> str | None:
    """What torch says about the death of a loader process if that ended the script; None for any other error.

    torch raises it from a signal handler, so between any two lines of the script, or from the next read.
    """
    while error is not None:
        if isinstance(error, RuntimeError) and _LOADER_DIED.search(str(error)):
            return str(error).strip().splitlines()[0]
        error = error.__cause__ or error.__context__
    return None
