"""The command `combinax`, launched so that Ctrl-C ends it quietly from its first import on."""

from __future__ import annotations

from .interrupt import quietly

__all__ = ["main"]


def main() -> None:
    """Run the command. What it imports takes seconds, so it is imported here."""
    quietly()
    from .__main__ import main

    main()
