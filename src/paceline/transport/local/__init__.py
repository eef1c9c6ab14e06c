"""The lane between two processes of one host: a unix socket for headers, shared memory for frames.

`listener` pairs two processes, `link` is one session, `reader` and `writer` are its two directions, `records` is the
form of the bytes. The handshake that proves the peer happens before, on a ZeroMQ connection.
"""
