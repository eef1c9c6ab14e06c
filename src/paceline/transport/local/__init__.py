"""The lane between two processes of one host: a unix socket for headers, shared memory for frames.

`listener` connects two processes; `paceline.transport.streams` is the session on their socket.
"""
