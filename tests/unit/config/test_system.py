"""The operating systems that Paceline runs on."""

from __future__ import annotations

import pytest

from paceline.config.system import require_linux
from paceline.errors import UsageError


def test_linux_is_accepted() -> None:
    require_linux("linux")


@pytest.mark.parametrize(
    ("platform", "said"),
    [("darwin", "in a Linux container or a virtual machine"), ("win32", "WSL 2"), ("freebsd14", "this is freebsd14")],
)
def test_another_system_is_refused_with_the_way_to_go(platform: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"Paceline runs on Linux only; .*{said}"):
        require_linux(platform)
