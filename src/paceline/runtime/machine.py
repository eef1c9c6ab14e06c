"""What this process tells the coordinator about its machine: the name of the host, and the fingerprint (rule 12)."""

from __future__ import annotations

import socket

from paceline.config.role_spec import SharedSpec


def host_name(shared: SharedSpec) -> str:
    """The name of the host on which this process runs."""
    return shared.host_name or socket.gethostname()


def worker_fingerprint() -> str:
    """What the kernels of this worker depend on: CPU capability, torch build, threads and device."""
    import torch

    threads = torch.get_num_threads()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{server_fingerprint()}, {threads} thread{'s' * (threads != 1)}, {device}"


def server_fingerprint() -> str:
    """What the updates of this server depend on: CPU capability and torch build. Threads do not change their bits."""
    import platform

    import torch

    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
