"""A parameter server's process: the service around the core, and a store of dense blocks behind the core's protocols.

What counts, when, and in which order is decided in `paceline.core.server`; the arithmetic of one block is in
`paceline.blocks`.
"""
