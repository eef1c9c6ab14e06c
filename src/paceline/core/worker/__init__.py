"""The protocol of a worker: ask for a lease, read, push, seal, report. Pure state machines, one file each.

`dispatch` composes them and is the only one that a shell calls. No clock, no socket, no tensor lives here: the shell
passes the time in, sends the messages that are returned, and owns the model.
"""
