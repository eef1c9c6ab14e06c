"""The port between processes, on one host or many: ZeroMQ over TCP.

`port` is the `Port` of a role, `dial` the connecting end, `listener` the listening end with its `connections` and its
`tickets`, `outbox` what waits for a peer, `sockets` what both ends do with a ZeroMQ socket.
"""
