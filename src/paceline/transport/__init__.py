"""One seam between roles: a `Port` (see `base`) carries messages with frames to named peers, and returns events.

`zmq/` is the port between processes, `inproc` the port within one process, `faulty` a port that loses and delays. The
messages of a session go one way, its *lane*: by TCP, by the local link of `local/`, or within the process. `memory/`
holds the blocks that peers of one host read in place. Shared by all lanes: `admission` (every check of a message),
`sessions` (proven peers and their events), `loop` and `spin` (waiting), `limits`.

No role, no core and no torch is known here.
"""
