"""A session as a stream of records: headers, and the frames that are not in shared memory.

`link` is one session, `reader` and `writer` are its two directions, `records` defines the format of the bytes, and
`channel` carries them: a unix socket on one host, a plain TCP connection on loopback (`tcp`), or an encrypted TCP
connection (`paceline.transport.sealed`). `listener` and `dialing` connect two processes by TCP. The handshake that
proves the peer happens earlier, on a ZeroMQ connection.
"""
