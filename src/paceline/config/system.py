"""The operating systems that Paceline runs on."""

from __future__ import annotations

import sys

from paceline.errors import UsageError

_ELSEWHERE = {
    "darwin": "on macOS, run it in a Linux container or a virtual machine",
    "win32": "on Windows, install it in WSL 2 (`wsl --install`)",
}


def require_linux(platform: str = sys.platform) -> None:
    """Check that this is Linux: sealed shared memory, parent-death signals and file locks are needed.

    Raises:
        UsageError: it is another system; the message names the way to use Paceline there.
    """
    if platform != "linux":
        raise UsageError(f"Paceline runs on Linux only; {_ELSEWHERE.get(platform, f'this is {platform}')}")
