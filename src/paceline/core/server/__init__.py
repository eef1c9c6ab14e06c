"""The protocol of a parameter server: which attempts count, when a step is ready, what is applied, copied and saved.

`dispatch` routes each message to the machine that owns what it changes. No I/O, no clock, no torch: arithmetic is
behind the protocols of `block_store`, and `paceline.server` is the process around it.
"""
