"""The member of a worker's process, in runs with `--insecure-collective`: it can hold the blocks."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.checkpoint.storage import open_storage
from paceline.clients.redial import Redial
from paceline.config.role_spec import RoleSpec, WorkerSpec
from paceline.messages import Register
from paceline.runtime.addresses import own_address
from paceline.runtime.exit_codes import EXIT_LOST
from paceline.runtime.last_words import say_last_words
from paceline.runtime.machine import host_name, server_fingerprint
from paceline.runtime.rundir import RunDir
from paceline.runtime.starts import node_id
from paceline.transport.zmq.port import ZmqPort
from paceline.types import NodeId, member_name

if TYPE_CHECKING:
    from paceline.server.member import Member, MemberThread

_RELEASE_S = 60.0  # seconds that a worker whose script has ended waits until the job can spare its member


@dataclass(frozen=True, slots=True)
class HostedMember:
    """A member that runs in a thread of this process."""

    node: NodeId
    thread: MemberThread

    def leave(self) -> None:
        """Wait until the coordinator lets the member go: the others have its blocks, or the job is over and saved."""
        if not self.thread.wait(_RELEASE_S):
            self.thread.close()

    def close(self) -> None:
        """End the member now: its blocks are lost here."""
        self.thread.close()


def start_member(run: RunDir, spec: RoleSpec, worker: WorkerSpec) -> HostedMember:
    """Start the member of the worker that `spec` configures. An error in it ends this process."""
    from paceline.server.member import MemberThread

    name = member_name(spec.name)
    node = node_id(name, spec.start)
    thread = MemberThread(functools.partial(_make, run, spec, worker, name, node), _fail)
    thread.start()
    return HostedMember(node, thread)


def _make(
    run: RunDir, spec: RoleSpec, worker: WorkerSpec, name: str, node: NodeId
) -> tuple[Member, Callable[[], None]]:
    from paceline.server.member import Member
    from paceline.server.service import ServerService

    shared = spec.shared
    address = own_address(shared.host)
    port = ZmqPort(node, run.token(), listen=address, local=shared.local, insecure_blocks=shared.insecure_blocks)
    intro = Register(1, "server", name, spec.start, host_name(shared), port.address, fingerprint=server_fingerprint())
    storage = open_storage(shared.checkpoints)
    service = ServerService(port, intro, storage=storage, term=shared.term, ordered=worker.ordered)
    return Member(service, port, Redial(port, run.coordinator), address), port.close


def _fail(reason: str) -> None:
    """End the process at once: the script's thread may be in the middle of anything, and nobody waits for it."""
    say_last_words(f"the member of this worker failed: {reason}")
    os._exit(EXIT_LOST)
