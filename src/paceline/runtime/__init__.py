"""Builds and runs one role from its configuration, and knows the run directory. It starts no process: engines do."""
