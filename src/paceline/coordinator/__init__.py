"""The coordinator process: carries out the effects of `core.coordinator`, and keeps what must be durable.

`service` feeds messages and time to the core; `store` writes the SQLite log, which only the newest
`generation` may do; `history` and `reader` read it;
`checkpoint_completion` completes checkpoints in a thread; `status` tells people and engines how the run is. It decides
nothing about the job: that is `core.coordinator`. No torch.
"""
