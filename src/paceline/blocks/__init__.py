"""Arithmetic on blocks that servers and workers share: a model's tensors as flat blocks, sums, updates, versions.

Nothing here sends, decides or knows the protocol of a step. The bits of a result depend on the operands and their
order, never on the number of threads or on the time of an addition.
"""
