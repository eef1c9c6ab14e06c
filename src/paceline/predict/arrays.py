"""Tensors of requests and answers as arrays of numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.core.predict.signature import DATATYPES

Arrays = Mapping[str, "np.ndarray[Any, Any]"]
"""Tensors by name. One of datatype BF16 is an array of int16 with the same bits."""

NUMPY: Mapping[str, np.dtype[Any]] = {
    name: np.dtype("int16" if name == "BF16" else dtype) for name, dtype in DATATYPES.items()
}
"""The array type of each datatype, in little-endian order as the protocol has it."""
