"""The lane between two processes of one host: a unix socket for headers, shared memory for frames.

`listener` connects two processes, `link` is one session, `reader` and `writer` are its two directions, `records`
defines the format of the bytes. The handshake that proves the peer happens earlier, on a ZeroMQ connection.
"""
