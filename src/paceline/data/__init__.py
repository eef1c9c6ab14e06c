"""Data of a phase: where samples come from, and how a slot's batch is made."""
