"""The protocol of each role as plain classes: their methods get messages and the time, and return effects.

No I/O, no clock, no torch. `coordinator/`, `server/` and `worker/` are the cores of the roles, `audit/` checks a log.
The cores share the modules beside these folders: `effects` (what a core tells its shell to do, and the facts of the
log), `schedule` and `sampling` (what a step consists of), `window` (how old a state may be), `layout` (tensors cut into
blocks), `message_parts` (large messages), `lineage` (which commits made a state), `hash_chain` (a hash of a block's
history), `running_time` (time without the process's own pauses).
"""
