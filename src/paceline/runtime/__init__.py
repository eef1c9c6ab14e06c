"""Builds one role from its configuration and runs it; knows the run directory. `engines` start the processes."""
