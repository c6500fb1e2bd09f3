"""A row of a table (a run that somebody measured, or asks about) as a request, and what its blanks stand for.

cells.py   numbers, words, options, checked        row_model.py   the model: by name, dims or size
rows.py    all of it: a Request, or why not        usual.py       a layout where the row states none
"""
