"""Logs of training, of other trainers and our own: how fast, is that what one should get, what went wrong.

lines.py      the few lines that count, of a file of any size   steps.py       steps, each once; restarts
forms.py      what a step line looks like: a table              times.py       the usual step, slow ones
values.py     numbers and `key: value` pairs                    curve.py       the loss: spikes, not finite
facts.py      model, layout, devices: a table of lines          expected.py    what the planner expects
              (arguments are read by emit/printed.py)           causes.py      what is wrong, in words
documents.py  trainer_state.json                                answer.py      the keys of `--json`; a run
log.py        all lines of a file, and of several, together                    of our own
"""
