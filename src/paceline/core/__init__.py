"""The protocol of each role as plain classes: messages and a time in, effects out. No I/O, no clock, no torch.

`coordinator/`, `server/`, `worker/` and `audit/` are one program each. The modules beside them are shared: `effects`
(what a core tells its shell to do, and the facts of the log), `schedule` and `sampling` (what a step consists of),
`window` (how old a state may be), `layout` (tensors cut into blocks), `message_parts` (large messages),
`lineage` (which commits made a state), `hash_chain`.
"""
