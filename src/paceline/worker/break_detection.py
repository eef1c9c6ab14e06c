"""Tells `break` from an exception when a generator is closed."""

from __future__ import annotations

import opcode
from types import FrameType

_POP_TOP = opcode.opmap["POP_TOP"]


def left_by_break(frame: FrameType | None) -> bool:
    """Whether `frame`, which has just dropped the iterator of its loop, left the loop by `break` or `return`.

    `break` and `return` drop the iterator by the instruction POP_TOP; after an exception the frame stands at the
    instruction that raised it. False means that the reason is not known.
    """
    if frame is None or frame.f_lasti < 0:
        return False
    return frame.f_code.co_code[frame.f_lasti] == _POP_TOP
