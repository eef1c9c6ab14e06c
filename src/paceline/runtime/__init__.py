"""Builds one role from a config: the only wiring."""
