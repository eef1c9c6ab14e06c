"""The audit: checks of a job's log and checkpoints, as pure functions.

Commits, facts, sampling and hash chains are compared here, and differences are reported. `audit.audit` is the entry.
Nothing here reads the log or the checkpoints from disk: `paceline.coordinator.audit_input` does.
"""
