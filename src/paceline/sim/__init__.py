"""The core under a virtual clock and a lossy network, everything derived from one seed.

`run.simulate` plays one schedule and checks every rule after each event; `measure.measure` counts what the core
costs. The processes here have no tensors: a gradient is the symbol of how it was made (`symbols.Gradient`).
"""
