"""The address at which the roles of this host listen."""

from __future__ import annotations

import ipaddress
import socket

from paceline.config import load
from paceline.errors import UsageError


def own_address(where: str) -> str:
    """Return `where` if it is an address; if it is a network, the address of this host in that network.

    Raises:
        UsageError: this host has no address in that network.
    """
    network = ipaddress.ip_network(where)
    if network.num_addresses == 1:
        return str(network.network_address)
    # Nothing is sent. `connect` of a datagram socket makes the system choose the address that it would send from.
    with socket.socket(socket.AF_INET if network.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(network[1]), 9))
            own: str = probe.getsockname()[0]
        except OSError:
            own = ""
    if not own or ipaddress.ip_address(own) not in network:
        raise UsageError(f"{load.HOST}={where}: this host has no address in that network; give one of its own")
    return own


def check_address(where: str) -> None:
    """Check that the roles of this host can listen at `where`, an address or a network, before any of them starts.

    Raises:
        UsageError: they cannot.
    """
    address = own_address(where)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise UsageError(
                f"{load.HOST}={where}: this host cannot listen there ({error.strerror}); give an address of its own, "
                "or a network that it is in"
            ) from None
