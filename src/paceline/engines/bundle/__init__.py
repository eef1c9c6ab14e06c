"""The user's files on disk: which ones belong to a run, a store of their contents, and their unpacking."""
