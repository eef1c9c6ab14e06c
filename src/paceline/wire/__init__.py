"""Bytes in and out: messages, frames and the handshake, without sockets, clocks or torch."""
