"""A port connects on loopback to processes of its own user only."""

from __future__ import annotations

import os
import socket

import pytest

from paceline.transport.base import PeerDown
from paceline.transport.zmq.owners import listening_user, stranger_at
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.token import new_token

OTHER = 4242


@pytest.mark.parametrize(("host", "asked"), [("127.0.0.1", "127.0.0.1"), ("", "127.0.0.1"), ("::1", "::1")])
def test_the_user_who_listens_is_known(host: str, asked: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        port = listener.getsockname()[1]
        assert listening_user(asked, port) == os.geteuid()
        assert stranger_at(asked, port) is None
    assert listening_user(asked, port) is None, "nobody listens there any more"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2"])
def test_a_name_and_an_address_without_a_listener_have_no_user(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert listening_user(host, listener.getsockname()[1]) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can open a socket as another user")
def test_a_socket_of_another_user_is_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    os.seteuid(OTHER)
    try:
        listener = socket.create_server(("127.0.0.1", 0))
    finally:
        os.seteuid(0)
    with listener:
        port = listener.getsockname()[1]
        assert listening_user("127.0.0.1", port) == OTHER
        assert stranger_at("127.0.0.1", port) is None, "root may connect to every user"
        monkeypatch.setattr(os, "geteuid", lambda: OTHER + 1)
        assert stranger_at("127.0.0.1", port) == OTHER


def test_a_port_does_not_connect_to_a_process_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.transport.zmq.dial.stranger_at", lambda host, port: OTHER)
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        client = ZmqPort("worker/1", new_token())
        try:
            address = f"tcp://127.0.0.1:{impostor.getsockname()[1]}"
            client.connect(address)
            told = client.recv(5.0)
            assert isinstance(told, PeerDown)
            assert (told.peer, told.refused) == (address, "owner")
            assert f"a process of user {OTHER} listens at {address}" in told.reason
            assert client.recv(0.3) is None, "it is said once"
            impostor.settimeout(0.05)
            with pytest.raises(TimeoutError):
                impostor.accept()
        finally:
            client.close()
