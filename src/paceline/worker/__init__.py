"""The job that a script joins: turns, seals, validation."""
