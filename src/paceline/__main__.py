"""``python -m paceline``: the ``paceline`` command, where it is not on the path."""

from __future__ import annotations

from paceline.cli.main import main

if __name__ == "__main__":
    main()
