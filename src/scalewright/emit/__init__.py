"""The same run for other trainers, and their configurations read back; no torch.

run.yaml, plan.json ──► Settings ──► <trainer>.write ──► Emitted: files, launch line, what was dropped
their file or command line ──► ForeignKeys ──► <trainer>.read ──► Reading: a run of ours, what isn't known

settings.py   a run as dotted keys, each taken by an emitter or reported
foreign.py    another trainer's configuration as keys, each taken by a reader or reported; numbers
rules.py      a trainer's words as data, both ways: Word (words.yaml), Pick, Fixed, Lacks
tables.py     tables of their names in YAML: keys.yaml, those that say nothing about a run; other_training.yaml
trainers.py   the trainers, by name: a file each, or a folder      write.py   a run written for one, and saved
command_lines.py   flags and launch lines, of bash scripts too      edits.py   values put in where they stand
emitted.py    what is written and read                               printed.py   arguments in a log
source.py     run files and plans, as Settings                         rates.py      the learning rate over the steps
read.py       a file's form is recognised; launch_script.py: a script leads to it; question.py: as a whole run
in_place.py   a layout put into a user's own file   python_code.py   of Python   other_training.py   what isn't priced
"""
