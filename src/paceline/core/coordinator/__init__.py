"""The coordinator's decisions: which worker computes which slot, what is committed, where the blocks are.

Start at `routes`: which machine handles each message, and which machines get each event. A *machine* owns some facts
of the job; it takes messages and events, and returns effects, facts and events. `tables/` holds the facts that every
machine may read; `all_tables` lists them. The shell and the simulator call `dispatch`. No I/O, no clock, no torch: time
and messages come in as arguments, and effects go out.

| what | where |
| --- | --- |
| processes join, are lost, leave (rules 7, 10) | `membership`, `heartbeats`, `job_identity`, `requests` |
| which steps there are, where the job stops (rule 8) | `segments`, `attendance` |
| slots are leased (rule 4) | `leasing`, `offers`, `speculation`, `tables/leases`, `tables/lost_holders` |
| steps are committed (rules 1, 2, 11) | `commits`, `gate` |
| blocks are placed, servers are evicted (rule 5) | `placement`, `in_sync_sets`, `rebalance`, `reachability` |
| whole hosts are lost, machines are not equal (rules 14, 12) | `host_loss`, `machine_kinds` |
| versions are validated and kept readable | `validation`, `pins` |
| checkpoints (rule 9) | `checkpoints` |
| the job is rewound (rule 6) | `rewind` |
| a coordinator starts again (rule 7) | `restart`, `adoption` |
"""
