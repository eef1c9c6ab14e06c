"""The coordinator process: carries out the effects of `core.coordinator`, and writes the durable log.

`service` feeds messages and time to the core. `store` writes the SQLite log; only a coordinator of the newest
`generation` may write it. `history` and `reader` read the log. `checkpoint_completion` completes checkpoints in a
thread. `status` describes the run for people and engines. This package decides nothing about the job:
`core.coordinator` does. It does not import torch.
"""
