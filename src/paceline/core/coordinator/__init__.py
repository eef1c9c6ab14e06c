"""The coordinator's decisions: which worker computes which slot, what is committed, where the blocks are.

Start at `routes`: which machine handles each message, and which machines hear of each event. A *machine* owns some
facts of the job; it takes messages and events, and returns effects, facts and events. `tables` says which facts every
machine may read. `dispatch` is what the shell and the simulator call. No I/O, no clock, no torch: time and messages
come in as arguments, and effects go out.

| what | where |
| --- | --- |
| processes join, are lost, leave (rules 7, 10) | `membership`, `members`, `heartbeats`, `identity`, `requests` |
| which steps there are, where the job stops (rule 8) | `segments`, `phases`, `attendance` |
| slots are leased (rule 4) | `leasing`, `offers`, `leases`, `reservations`, `speculation`, `worker_speed` |
| steps are committed (rules 1, 2, 11) | `commits`, `gate`, `commit_log` |
| blocks are placed, servers are evicted (rule 5) | `placement`, `rebalance`, `suspicion`, `reachability`, `placed` |
| versions are validated and kept readable | `validation`, `rounds`, `pins` |
| checkpoints (rule 9) | `checkpoints` |
| the job is rewound (rule 6) | `rewind`, `incarnation` |
| a coordinator starts again (rule 7) | `restart`, `adoption` |
"""
