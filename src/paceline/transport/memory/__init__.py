"""Memory for blocks: what a process allocates for them, shares with peers of its host, and lends frame by frame.

`arena` allocates, `shared_files` makes memory that another process can map, `loans` tells when a peer has dropped the
frames that it was lent, `heap` tunes the C library for frames that come by TCP. No sockets and no messages here.
"""
