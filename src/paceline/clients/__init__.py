"""Typed stubs: the only way one role talks to another from outside of a core."""
