"""How a test ends the sleeping of a script that was slow only to be disturbed in time."""

from __future__ import annotations

HURRY = "hurry"
"""A script stops sleeping once a file of this name is in its working directory."""
