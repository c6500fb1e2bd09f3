"""Goodput: the share of a run's time that trains, what takes the rest, and what would be better.

setting.py    a run's numbers: devices, work, saves, stops by cause, spares, lemon nodes; those that aren't given
simulate.py   many runs at once, event by event      (the closed forms are plan/reliability.py)
ledger.py     the same shares of a run that was, from its folder's events.jsonl and metrics.jsonl
answer.py     all of it as the keys of `goodput --json`, with days and money
"""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")
