"""Parameter servers: blocks, their optimizers, and the service around the core."""
