"""Tells `break` from an exception when a generator is closed."""

from __future__ import annotations

import opcode
from types import FrameType

_DROPS = {opcode.opmap[name] for name in ("POP_TOP", "POP_ITER") if name in opcode.opmap}
"""The instructions by which `break` and `return` drop the iterator: POP_TOP up to Python 3.13, then POP_ITER."""


def left_by_break(frame: FrameType | None) -> bool:
    """Whether `frame`, which has just dropped the iterator of its loop, left the loop by `break` or `return`.

    `break` and `return` drop the iterator by an instruction of their own; after an exception the frame stands at the
    instruction that raised it. False means that the reason is not known.
    """
    if frame is None or frame.f_lasti < 0:
        return False
    return frame.f_code.co_code[frame.f_lasti] in _DROPS
