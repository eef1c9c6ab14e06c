"""Tells `break` from an exception when a generator is closed."""

from __future__ import annotations

import opcode
from types import FrameType

_POP_TOP = opcode.opmap["POP_TOP"]


def left_by_break(frame: FrameType | None) -> bool:
    """Whether `frame`, which has just dropped its loop's iterator, did so by `break` or `return`.

    Both pop the iterator with an instruction of their own, while an exception leaves the frame at the instruction
    that raised. False means that it is not known.
    """
    if frame is None or frame.f_lasti < 0:
        return False
    return frame.f_code.co_code[frame.f_lasti] == _POP_TOP
