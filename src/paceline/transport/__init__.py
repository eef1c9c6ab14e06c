"""How roles exchange messages: a `Port` (see `base`) sends messages with frames to named peers, and returns events.

`zmq/` is the port between processes, `inproc` the port within one process, `faulty` a port that loses and delays
messages. All messages of a session use one *lane*: TCP, the local link of `local/`, or the queues of one process.
`memory/` holds the blocks that peers of one host read in place. All lanes share `admission` (every check of a message),
`sessions` (proven peers and their events), `loop` and `spin` (waiting), and `limits`.

Nothing here may import a role, a core or torch.
"""
