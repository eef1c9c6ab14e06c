"""Policies: each decides, from events of the job, whether the job stops and before which step.

A policy is a pure class with one method, `decide` (see `base`). It reads only the events that it is given: no clock,
no sockets, no state of the coordinator. The `Segments` machine asks all policies and makes the lowest stop durable
(`lowest_stop`, rule 8). A new policy is a new file here and an entry in `registry.default_policies`.
"""
