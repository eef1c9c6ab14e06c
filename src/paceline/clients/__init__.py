"""Typed stubs with which a process talks to a role: all of them use a `Port`, none has a rule of the protocol.

`redial` keeps a session with the coordinator, `heartbeat` shows that a process lives, `observer` asks for the status
and controls a run, `links` keeps the sessions between servers.
"""
