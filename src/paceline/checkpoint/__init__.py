"""The format of checkpoints on a storage: manifest, marker, shard files.

A checkpoint counts only if it is complete; its content is checked when it is read; any number of servers can load it.
`paceline.core` decides when a checkpoint is made, and of which version.
"""
