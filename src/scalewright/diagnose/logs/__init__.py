"""Logs of training, of other trainers and our own: how fast, is that what one should get, what went wrong.

lines.py   the few lines that count, of a file of any size     times.py     the usual step, slow ones
forms.py   what a step line looks like: a table                expected.py  what the planner expects
facts.py   model, layout, devices (arguments: emit/printed.py) causes.py    what is wrong, in words
steps.py   steps, each once; restarts                          answer.py    the keys of `--json`; a run of our own
log.py     all lines of a file, and of several, together       changes.py   lasting shifts; changed.py: their causes
given.py   what a user adds to a log or a trace
"""
