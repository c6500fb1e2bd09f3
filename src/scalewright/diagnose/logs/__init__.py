"""Logs of training, of other trainers and our own: how fast, is that what one should get, what went wrong.

lines.py   the few lines that count, of a file of any size     steps.py     steps, each once; restarts
forms.py   what a step line looks like: a table                times.py     the usual step, slow ones
values.py  numbers and `key: value` pairs                      expected.py  what the planner expects
facts.py   model, layout, devices: a table of lines            causes.py    what is wrong, in words
           (arguments are read by emit/printed.py)             answer.py    the keys of `--json`; a run of
log.py     all lines of a file, and of several, together                    our own
"""
