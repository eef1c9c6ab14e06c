"""The simulator: the real cores under a virtual clock and a lossy network, with everything derived from one seed.

`run.simulate` plays one schedule; `record` and the `*_checks` modules check every rule as things happen.
`measure.measure` measures the cost of the core. There are no tensors, sockets or threads here: a gradient is the symbol
of how it was made (`symbols.Gradient`). The shells of the real processes are not used either; `roles` and `worker`
stand for them.
"""
