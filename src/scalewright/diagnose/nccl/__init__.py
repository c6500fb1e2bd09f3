"""Logs of NCCL and RCCL (`NCCL_DEBUG=INFO`): how ranks were connected, what slows or stops them.

lines.py           NCCL's lines, apart from the rest        communicators.py   whose line it is
patterns.py        a regular expression for each line       log.py             all of a run's lines together
problems.py        warnings and errors: a table             summary.py         the run in figures, odd hosts
slow_links.py      why links are slow                       answer.py          all causes, the keys of `--json`
"""
