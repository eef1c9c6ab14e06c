"""The simulator: the real cores under a virtual clock and a lossy network, with everything derived from one seed.

`run.simulate` plays one schedule; `record` and the `*_checks` modules check every rule while the schedule is played.
`measure.measure` measures the cost of the core. There are no tensors, sockets or threads here: instead of numbers, a
gradient holds how it was made (`symbols.Gradient`). The simulator does not use the shells of the real processes;
`roles` and `worker` take their place.
"""
