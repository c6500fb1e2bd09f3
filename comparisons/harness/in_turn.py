"""Trains run files one after the other, in processes that were started once.

    torchrun ... harness/share.py FOLDER -m harness.in_turn a.json b.json ...     joins and leaves for each

Starting Python and importing torch in every process takes longer than most of the runs.
"""

from __future__ import annotations

import os
import sys

import scalewright


def main(files: list[str]) -> None:
    """Every run as a new attempt, whose ranks don't look up each other's addresses of the run before."""
    for attempt, file in enumerate(files):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
        scalewright.train(file, quiet=True)


if __name__ == "__main__":
    main(sys.argv[1:])
