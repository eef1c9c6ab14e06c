"""The format of all bytes that processes exchange. No sockets, no clocks, no torch.

`headers` encodes messages, `codecs` encodes blocks as frames, `frames` checks a received message with its frames,
`handshake` proves two processes to each other with the job's `token`.
"""
