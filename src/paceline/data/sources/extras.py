"""Packages that are not installed with Paceline."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from paceline.errors import UsageError


def need(module: str, extra: str) -> Any:
    """Import `module`, which the extra `extra` installs.

    Raises:
        UsageError: it is not installed; the message has the line that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UsageError(f"{package} is not installed ({error}): pip install 'paceline[{extra}]'") from None
