"""``python -m paceline`` runs the ``paceline`` command, also if it is not on the PATH."""

from __future__ import annotations

from paceline.cli.main import main

if __name__ == "__main__":
    main()
