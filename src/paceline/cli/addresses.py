"""Reads HOST:PORT, where HOST may be a name, from the command line."""

from __future__ import annotations


def resolved(text: str) -> tuple[str, int]:
    """The IP address and the port of HOST:PORT, where HOST may be a name.

    Raises:
        UsageError: the text has another form, or the name has no address.
    """
    import socket

    from paceline.engines.host_options import DEFAULT_PORT, parse_address
    from paceline.errors import UsageError

    try:
        return parse_address(text, "HOST:PORT")
    except UsageError:
        host, _, port = text.partition(":")
        if not host or (port and not port.isdecimal()) or host[0].isdigit() or "[" in host:
            raise
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise UsageError(f"{host}: this name has no address ({error.strerror}); give an IP address") from None
        return str(found[0][4][0]), int(port or DEFAULT_PORT)
