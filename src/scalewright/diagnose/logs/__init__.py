"""Logs of training, of other trainers and our own: how fast, is that what one should get, what went wrong.

lines.py     the few lines that count, of a file of any size     steps.py     steps, each once; restarts
forms.py     what a step line looks like: a table                times.py     the usual step, stalls, slow periods
values.py    numbers and `key: value` pairs                      curve.py     the loss: not finite, spikes, skips
facts.py     model, layout, devices: a table                     expected.py  what the planner expects
documents.py trainer_state.json, lines of JSON                   answer.py    the keys of `diagnose --json`
log.py       all of a run's files together                       run_folder.py  a run of our own
"""
