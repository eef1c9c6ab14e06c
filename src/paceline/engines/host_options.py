"""The options of a run on several hosts."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from paceline.errors import UsageError

DEFAULT_PORT = 7411
LOCAL_HOST = "supervisor"
"""The name of the supervisor's own host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """How a run uses hosts. The supervisor accepts agents at `listen`, which is ADDRESS:PORT.

    The roles start when `min_hosts` hosts are there. With `local_roles` the supervisor's machine carries roles, too.
    With `shared_dir` every host sees the paths of this machine; otherwise the script's directory is copied to each
    host. `auto_workers` is one worker for each free core, `servers_per_host` one server on
    each host. An agent that has not heard from the supervisor for `term_s` seconds ends its roles. `ssh` are the
    machines on which the launcher starts the agents itself.
    """

    listen: str
    min_hosts: int = 1
    local_roles: bool = False
    shared_dir: bool = False
    auto_workers: bool = False
    servers_per_host: bool = False
    same_cpu: bool = False
    insecure_blocks: bool = False
    term_s: float = 30.0
    ssh: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.address  # noqa: B018
        if self.min_hosts < 1:
            raise UsageError(f"--min-hosts must be at least 1, not {self.min_hosts}")

    @property
    def address(self) -> tuple[str, int]:
        """The IP address and the port at which the supervisor listens.

        Raises:
            UsageError: `listen` does not have the form ADDRESS:PORT, or is a wildcard.
        """
        return parse_address(self.listen, "--listen")


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Read ADDRESS:PORT or [ADDRESS]:PORT; without a port it is 7411.

    Raises:
        UsageError: it has another form, or the address is a wildcard; the message names the `option`.
    """
    host, colon, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
    host = (host or port).strip("[]")
    try:
        address = ipaddress.ip_address(host)
        number = int(port) if colon else DEFAULT_PORT
    except ValueError:
        raise UsageError(f"{option} must be ADDRESS:PORT, such as 10.0.0.1:{DEFAULT_PORT}, not {text!r}") from None
    if address.is_unspecified or address.is_multicast:
        raise UsageError(f"{option} {text}: give the one address that the other hosts connect to, not a wildcard")
    if not 0 <= number < 1 << 16:
        raise UsageError(f"{option} {text}: a port is a number from 0 to 65535")
    return str(address), number
