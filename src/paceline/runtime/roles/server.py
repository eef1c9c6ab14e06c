"""The role of a server."""

from __future__ import annotations

import functools
from pathlib import Path

from paceline.checkpoint.storage import open_storage
from paceline.clients.redial import Redial
from paceline.config.role_spec import RoleSpec, ServerSpec
from paceline.messages import Register
from paceline.runtime.addresses import own_address
from paceline.runtime.machine import host_name, server_fingerprint
from paceline.runtime.roles.base import Launch, Role
from paceline.runtime.rundir import RunDir
from paceline.runtime.service_loop import serve
from paceline.runtime.starts import node_id
from paceline.transport.zmq.port import ZmqPort

_WAIT_S = 60.0  # for the address of the coordinator
_BEAT_S = 0.5  # between two heartbeats


class ServerRole(Role):
    """A process that holds blocks. It hangs if the coordinator has removed it; if it ends by itself, it has died."""

    name = "server"

    def settings(self, launch: Launch) -> ServerSpec:
        """The number of its threads."""
        return launch.server

    def run(self, spec: RoleSpec) -> int:
        """Serve blocks until the coordinator or a signal ends it."""
        import torch

        from paceline.clients.heartbeat import Heartbeat
        from paceline.server.service import ServerService

        torch.set_num_threads(1)
        run, shared = RunDir(Path(spec.shared.run)), spec.shared
        node, token = node_id(spec.name, spec.start), run.token()
        open_port = functools.partial(ZmqPort, local=shared.local, insecure_blocks=shared.insecure_blocks)
        port = open_port(node, token, listen=own_address(shared.host))
        beat = Heartbeat(lambda: open_port(f"{node}#beat", token), run.coordinator, node, _BEAT_S)
        try:
            intro = Register(
                1,
                self.name,
                spec.name,
                spec.start,
                host_name(shared),
                port.address,
                fingerprint=server_fingerprint(),
            )
            threads, storage = spec.read(ServerSpec).threads, open_storage(shared.checkpoints)
            service = ServerService(port, intro, storage=storage, threads=threads, term=shared.term)
            run.wait_for_coordinator(_WAIT_S)
            beat.start()
            try:
                serve(service, port, Redial(port, run.coordinator))
            finally:
                service.close()
        finally:
            beat.close()
            port.close()
        return 0
