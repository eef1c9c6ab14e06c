"""Checkpoints on a storage: complete or absent, checked by content, readable by any number of servers.

The format lives here: manifest, marker, shard files. Core decides when a checkpoint is made, and of which version.
"""
