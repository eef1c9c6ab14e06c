"""Checkpoints: complete or absent, checked by content, readable by any number of servers."""
