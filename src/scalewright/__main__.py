"""`python -m scalewright` is the same command as `scalewright`."""

from __future__ import annotations

import sys

from scalewright.cli import main

if __name__ == "__main__":
    sys.exit(main())
