"""`scalewright explain TERM`: what a word of the field means, and its number for a run of one's own.

terms/*.yaml    the entries, a file a theme: what it is, the formula, the function of its number
entries.py      finds an entry by its name or an alias, reads that one alone
subject.py      the run whose numbers they are: a file, a folder, the newest run, or an example
compute.py      calls the function that an entry names, with that run's quantities
answer.py       the keys of `--json`; report/present/explain.py makes blocks of them
pictures.py     bars, schedules and tables from the same functions
"""
