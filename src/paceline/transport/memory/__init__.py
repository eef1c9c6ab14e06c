"""Memory for blocks: a process allocates it, shares it with peers of its host, and lends frames in it to them.

`arena` allocates, `shared_files` makes memory that another process can map, `loans` tells when a peer has dropped the
frames that it borrowed, `heap` tunes the C library for frames that come by TCP. No sockets and no messages here.
"""
