"""Clients with which a process talks to a role. They send and receive through a `Port`, and decide nothing.

`redial` keeps a session with the coordinator, `heartbeat` shows that a process lives, `observer` asks for the status
and controls a run, `links` keeps the sessions between servers.
"""
