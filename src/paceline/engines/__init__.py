"""The launcher: starts the processes of a run, restarts and resizes them, and ends them. It runs no role itself."""
