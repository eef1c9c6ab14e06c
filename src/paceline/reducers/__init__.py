"""How a worker hands over the gradients of a slot and reads the next state of the model.

`base` has the protocol of a reducer. `servers` is the reducer that pushes to parameter servers and reads from them;
`sealing`, `push_buffers` and `model_blocks` are its parts. A reducer knows blocks, buffers and messages. It does not
know the script or its loop, which use only the protocol.
"""
