"""The name of the file by which a test makes a slow script stop sleeping."""

from __future__ import annotations

HURRY = "hurry"
"""A script stops sleeping once a file of this name is in its working directory."""
