"""Arithmetic on blocks that servers and workers share: a model's tensors as flat blocks, sums, updates, versions.

A *block* is a flat array with elements of some tensors of the model; servers hold, send and save blocks.
A *piece* is a range of the elements of one tensor that lies in one block.
A *chunk* is some blocks of one kind and dtype, in a row in one memory; a server updates a chunk at once.
A *run* (in `flat_optimizers`) is adjacent pieces of a chunk that one operation updates with the same hyper-parameters.

No module here sends a message, or decides which attempts count. The bits of a result depend on the operands and their
order, never on the number of threads or on the time of an addition.
"""
