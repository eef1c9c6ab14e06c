"""The port between processes, on one host or many: ZeroMQ over TCP.

`port` is the `Port` of a role, `dial` the connecting end, `listener` the listening end. `connections` and `tickets`
belong to the listener. `outbox` holds the messages that wait for a peer, `sockets` has the functions on ZeroMQ sockets
that both ends use.
"""
