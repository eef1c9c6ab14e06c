"""The audit: checks of a job's log and checkpoints, as pure functions.

The audit compares commits, facts, the sampling function and hash chains, and reports differences. Begin with
`audit.audit`. Nothing here reads the log or the checkpoints from disk: `paceline.coordinator.audit_input` does.
"""
