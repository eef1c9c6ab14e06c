"""The contract of `Port`, for every implementation and every lane."""

from __future__ import annotations

import itertools
import socket

from tests.contract.port_contract import PortContract, PortFactory

from paceline.testing.faulty import FaultPlan, FaultyPort
from paceline.transport.base import Port
from paceline.transport.inproc import InprocHub
from paceline.transport.zmq.port import ZmqPort
from paceline.wire.token import new_token


class ZmqPorts(PortFactory):
    def __init__(
        self, *, encrypt: bool | None = None, local: bool = False, insecure_blocks: bool = False, one_port: bool = False
    ) -> None:
        super().__init__()
        self._local = local
        self._token = new_token()
        self._encrypt = encrypt
        self._insecure_blocks = insecure_blocks
        self._one_port = one_port

    def make(self, node: str, at: str | None) -> Port:
        port = 0 if at is None else int(at.rpartition(":")[2])
        listen = None if at is None else "127.0.0.1"
        return ZmqPort(
            node,
            self._token,
            listen=listen,
            port=port,
            limits=self.limits,
            encrypt=self._encrypt,
            local=self._local,
            insecure_blocks=self._insecure_blocks,
            one_port=self._one_port,
        )

    def free_address(self) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


class InprocPorts(PortFactory):
    def __init__(self, *, strict: bool = False) -> None:
        super().__init__()
        self._hub = InprocHub(strict=strict, limits=self.limits)
        self._names = itertools.count()

    def make(self, node: str, at: str | None) -> Port:
        return self._hub.port(node, listen=None if at is None else at.removeprefix("inproc://"))

    def free_address(self) -> str:
        return f"inproc://address-{next(self._names)}"


class FaultyPorts(InprocPorts):
    def make(self, node: str, at: str | None) -> Port:
        return FaultyPort(super().make(node, at), FaultPlan())


class TestPlainPort(PortContract):
    """Sessions on loopback without shared memory: a plain stream over TCP."""

    def make_factory(self) -> PortFactory:
        return ZmqPorts()


class TestZmqPort(PortContract):
    """Sessions that stay on ZeroMQ, because there is no second port."""

    def make_factory(self) -> PortFactory:
        return ZmqPorts(one_port=True)


class TestEncryptedZmqPort(PortContract):
    def make_factory(self) -> PortFactory:
        return ZmqPorts(encrypt=True)


class TestInsecureBlocksZmqPort(PortContract):
    def make_factory(self) -> PortFactory:
        return ZmqPorts(encrypt=True, insecure_blocks=True)


class TestEncryptedZmqPortWithoutASecondPort(PortContract):
    def make_factory(self) -> PortFactory:
        return ZmqPorts(encrypt=True, one_port=True)


class TestLocalPort(PortContract):
    def make_factory(self) -> PortFactory:
        return ZmqPorts(local=True)


class TestEncryptedLocalPort(PortContract):
    """The connection on which the peer proves itself is encrypted; the local link need not be."""

    def make_factory(self) -> PortFactory:
        return ZmqPorts(encrypt=True, local=True)


class FaultyLocalPorts(ZmqPorts):
    def make(self, node: str, at: str | None) -> Port:
        return FaultyPort(super().make(node, at), FaultPlan())


class TestFaultyLocalPort(PortContract):
    def make_factory(self) -> PortFactory:
        return FaultyLocalPorts(local=True)


class TestInprocPort(PortContract):
    def make_factory(self) -> PortFactory:
        return InprocPorts()


class TestStrictInprocPort(PortContract):
    def make_factory(self) -> PortFactory:
        return InprocPorts(strict=True)


class TestFaultyPortWithoutFaults(PortContract):
    def make_factory(self) -> PortFactory:
        return FaultyPorts()
