"""The user's files: the list of files that a run needs, and its way to a host. No I/O."""
