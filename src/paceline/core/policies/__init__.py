"""Policies: each decides, from events of the job, whether the job stops or changes, and from which step on.

A policy is a pure class with one method, `decide` (see `base`). It reads only the events that it is given: no clock,
no sockets, no state of the coordinator. The machine `Decisions` asks all policies and carries out what they decide; a
stop is durable before anything acts on it (rule 8). A new policy is a new file here and an entry in `registry`.
"""
