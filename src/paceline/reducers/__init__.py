"""Where the slots of a step meet, seen from one worker. `base` is the seam, each other module one way to do it.

`servers`: gradients are pushed to parameter servers, and versions are pulled from them. A reducer knows blocks, buffers
and messages; it knows neither the script nor its loop, which use it through the protocol only.
"""
