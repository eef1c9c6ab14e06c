"""Hosts, decided without I/O: what an agent does, what a supervisor knows of its hosts, and where a role is started.

`agent` is the agent's side and `host_table` the supervisor's side of the messages in `paceline.messages.hosts`.
`choice` chooses the host of a role. Engines carry out what these classes return.
"""
