"""Policies: decide, from what a job has done so far, how it goes on.

A policy is a pure class with one method, `decide` (see `base`). It reads only the events that it is given: no clock,
no sockets, no state of the coordinator. The `Segments` machine applies its decisions as durable facts (rule 8). A new
policy is a new file here and an entry in `registry.default_policies`.
"""
