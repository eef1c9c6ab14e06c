"""The environment variables for hosts and for the commands that start roles."""

from __future__ import annotations

import pytest

from paceline.config.load import HOST, host
from paceline.errors import UsageError
from paceline.runtime.addresses import own_address


def test_roles_listen_on_loopback_unless_the_environment_names_a_host() -> None:
    assert host({}) == "127.0.0.1"
    assert host({HOST: "10.1.0.0/16"}) == "10.1.0.0/16"
    for wrong in ("here", "10.1.0.3/16"):
        with pytest.raises(UsageError, match="PACELINE_HOST must be an IP address or a network"):
            host({HOST: wrong})


def test_the_own_address_is_the_one_in_the_named_network() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("::1") == "::1"
    assert own_address("127.0.0.0/8") == "127.0.0.1"
    with pytest.raises(UsageError, match=r"PACELINE_HOST=203\.0\.113\.0/24: this host has no address in that network"):
        own_address("203.0.113.0/24")
