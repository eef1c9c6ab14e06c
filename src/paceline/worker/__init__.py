"""The job that a script joins: its loops, turns, validation and saving, and the session with the coordinator.

This is the shell around `core.worker`: it owns the port, the clock and the script's model. `core.worker` decides what
is sent when, `reducers` pushes gradients and reads versions, `data` makes batches.
"""
