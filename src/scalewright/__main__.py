"""`scalewright` and `python -m scalewright`: hears signals first, since what it imports takes a while.

train, sweep    75: the same command goes on; while a run trains it has handlers of its own
other verbs     128 and the signal's number, after temporary files and processes have gone
at the end      the code of what was done, whatever comes
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from scalewright.launch.stop import EARLY, begin_anew, heard_signals, keep_exit_code, stop_signals
from scalewright.spec.common import began
from scalewright.spec.errors import Stopped

GO_ON = ("train", "sweep", "launch")


def main() -> int:
    """Runs the command line of this process; returns its exit code."""
    begin_anew()
    keep_exit_code()
    began.note()
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    asked: list[int] = []

    def leave(number: int) -> None:
        asked.append(number)
        if number == signal.SIGINT and (verb not in GO_ON or len(asked) > 1):
            raise KeyboardInterrupt
        if len(asked) == 1:  # a second one would interrupt what the first makes this process clean up
            raise SystemExit(Stopped.exit_code if verb in GO_ON else 128 + number)

    try:
        with stop_signals(leave):
            from scalewright.cli import main as run_command_line

            code = run_command_line()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:  # before the command line could take it
        code = 128 + signal.SIGINT
    for number in heard_signals():
        signal.signal(number, lambda *_: os._exit(code))
    if asked and code in (Stopped.exit_code, 128 + asked[0]):
        words = EARLY if verb in GO_ON else "ended"
        with suppress(OSError, ValueError):  # its terminal may have gone
            print(f"{words} ({signal.Signals(asked[0]).name})", file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
