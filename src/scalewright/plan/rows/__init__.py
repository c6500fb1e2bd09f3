"""Rows of a table of runs (measured ones, or to predict) as requests, with defaults for blank cells.

cells.py      numbers, words, options, checked; a layout where the row states none
row_model.py  the model: by name, dims or size        rows.py   a row's Request, or a UserError
"""
